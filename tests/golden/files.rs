//! Cases about rule files alone: the directory is read as the service reads it, without one.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path};

use serde_json::json;
use tollgate::{
    rules::{
        compile,
        watch::{Dir, Reading},
    },
    settings::{RawSettings, Settings},
};

use crate::{
    case::{Case, Content},
    compare::differences,
};

/// In which fields a directory with the case's files is taken otherwise than recorded.
pub(crate) fn run(case: &Case, env: &[(&str, &str)]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &case.files(false));
    let env: Vec<(String, String)> = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .chain(case.env())
        .filter(|(name, _)| tollgate::settings::table().iter().any(|row| row.name == name))
        .collect();
    let raw = env.iter().fold(RawSettings::default(), |raw, (name, value)| raw.with(name, value.as_str()));
    let settings = Settings::compile(&raw).unwrap();
    let at = Dir::new(dir.path()).with(settings.rules.which);
    let compiled = Reading::of(&at).map(|reading| compile(&reading, settings.dialect()));
    let got = match compiled {
        Ok(Ok(compiled)) => {
            let mut lines = compiled.rules.describe();
            lines.sort();
            json!({"expect": "accepted", "rlconfig": lines})
        }
        Ok(Err(_)) | Err(_) => json!({"expect": "refused"}),
    };
    let mut expected = json!({"expect": case.get("expect")});
    if expected["expect"] == "accepted" {
        expected["rlconfig"] = case.get("rlconfig").clone();
    }
    differences(&expected, &got)
}

pub(crate) fn write(dir: &Path, files: &BTreeMap<String, Content>) {
    for (name, content) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content {
            Content::Bytes(bytes) => fs::write(path, bytes).unwrap(),
            Content::Link(target) => symlink(target, path).unwrap(),
        }
    }
}
