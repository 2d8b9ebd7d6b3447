//! The JSON Schema of rule files: editors read it, and complete and check while one types.
//!
//! It cannot know all that the compiler knows (names that stand twice, tiers that do not exist, csv files), and an editor
//! reads YAML 1.2 where the compiler reads 1.1; so the compiler has the last word. What both know they must agree on, and
//! the tests below hold them together: the same fields, the same accepted files, and the same refused ones but for a list.

/// The JSON Schema of rule files, both forms, draft 2020-12.
pub const SCHEMA: &str = include_str!("schema.json");

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use serde_json::Value;

    use super::{
        super::{fields::Grammar, metadata, reference, tiered, yaml},
        SCHEMA,
    };

    /// Mistakes that a schema cannot see.
    const BEYOND_A_SCHEMA: [&str; 23] = [
        "alias-in-its-anchor",
        "buckets-without-names",
        "csv",
        "csv-missing",
        "csv-tenant-twice",
        "descriptor-twice",
        "descriptors-too-deep",
        "domain-twice",
        "gcra-debt",
        "tier-anchor-that-does-not-override",
        "limits-of-one-window",
        "merge-of-a-text",
        "mode-against-shadow-mode",
        "not-yaml-cut-short",
        "not-yaml-indentation",
        "not-yaml-tab",
        "tier-field-twice",
        "tier-limits-too-many",
        "tier-shards",
        "tier-twice",
        "too-deep",
        "tier-two-documents",
        "unknown-anchor",
    ];

    fn schema() -> Value {
        serde_json::from_str(SCHEMA).unwrap()
    }

    /// Why the schema refuses a file; `None` where it does not, or where the file is no YAML.
    fn refused(path: &Path) -> Option<String> {
        let text = fs::read_to_string(path).unwrap();
        let Ok(document) = yaml::read(&text, yaml::BOUNDS) else { return None };
        let value = document.root.as_ref().map_or(Value::Null, metadata::value);
        let validator = jsonschema::draft202012::new(&schema()).unwrap();
        validator.validate(&value).err().map(|error| format!("{} at {}", error, error.instance_path()))
    }

    fn files(folder: &str) -> Vec<std::path::PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    #[test]
    fn it_is_a_schema() {
        assert!(jsonschema::meta::is_valid(&schema()));
    }

    #[test]
    fn it_takes_what_the_compiler_takes() {
        let yaml = |path: &std::path::PathBuf| path.extension().is_some_and(|ext| ext == "yaml");
        let paths: Vec<_> =
            ["rules", "tests/fixtures/accepted"].into_iter().flat_map(files).filter(yaml).collect();
        assert!(paths.len() >= 4);
        for path in paths {
            assert_eq!(refused(&path), None, "{}", path.display());
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let mut files = std::collections::BTreeMap::from([(name, fs::read(&path).unwrap())]);
            files.insert("tenants.csv".into(), b"x,free".to_vec());
            let compiled = crate::rules::compile(&files, crate::rules::Dialect::default());
            assert!(compiled.is_ok(), "{}", compiled.unwrap_err());
        }
    }

    #[test]
    fn it_refuses_what_the_compiler_refuses_as_far_as_a_schema_can() {
        let mut passed = BTreeSet::new();
        for path in files("tests/fixtures/mistakes") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let parts =
                if path.is_dir() { vec![path.join("a.yaml"), path.join("api.yaml")] } else { vec![path] };
            if parts.iter().filter(|path| path.exists()).all(|path| refused(path).is_none()) {
                passed.insert(name);
            }
        }
        assert_eq!(passed, BEYOND_A_SCHEMA.map(str::to_owned).into());
    }

    #[test]
    fn it_knows_the_fields_that_the_compiler_knows() {
        let schema = schema();
        let replaced = "/$defs/limit/properties/replaces/items";
        let grammars: [(&str, &Grammar); 9] = [
            ("/$defs/descriptor_file", &reference::FILE),
            ("/$defs/descriptor", &reference::DESCRIPTOR),
            ("/$defs/limit", &reference::LIMIT),
            (replaced, &reference::REPLACED),
            ("/$defs/tiered_file", &tiered::FILE),
            ("/$defs/tier", &tiered::TIER),
            ("/$defs/tenant", &tiered::TENANT),
            ("/$defs/tier_limit", &tiered::LIMIT),
            ("/$defs/changed_limit", &tiered::LIMIT),
        ];
        for (place, grammar) in grammars {
            let at = schema.pointer(place).unwrap_or_else(|| panic!("{place}"));
            let properties = at["properties"].as_object().unwrap();
            let names: BTreeSet<&str> = properties.keys().map(String::as_str).collect();
            assert_eq!(names, grammar.known.iter().copied().collect(), "{place}");
            // Only a tier's and a tenant's further names are the user's own.
            assert_eq!(at["additionalProperties"] != false, grammar.open, "{place}");
        }
    }
}
