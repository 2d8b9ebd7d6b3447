//! The environment of a deployment: from a file of assignments, or from a Kubernetes manifest.

use std::{collections::BTreeMap, path::Path};

use crate::{
    cli::Failure,
    rules::plain::{self, Plain, Value},
    settings,
};

/// Variables of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Environment {
    /// Names and values.
    pub(super) known: BTreeMap<String, String>,
    /// Names whose values stand elsewhere, and where.
    pub(super) unseen: BTreeMap<String, String>,
}

/// # Errors
/// When the file cannot be read or is none.
pub(super) fn from_env_file(path: &Path) -> Result<Environment, Failure> {
    let text = read(path)?;
    let mut environment = Environment::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) else {
            return Err(Failure::usage(format!(
                "{}:{}: `{line}` is no assignment: write NAME=VALUE",
                path.display(),
                index + 1
            )));
        };
        environment.known.insert(name.to_owned(), unquoted(value).to_owned());
    }
    Ok(environment)
}

/// The container that is called `container`, or else the one that runs the reference: its image or its variables tell.
///
/// # Errors
/// When the file cannot be read, is no YAML, or has no such container.
pub(super) fn from_manifest(path: &Path, container: Option<&str>) -> Result<Environment, Failure> {
    let text = read(path)?;
    let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let documents = plain::documents(&text).map_err(wrong)?;
    let containers: Vec<&Plain> = documents
        .iter()
        .flat_map(Plain::all)
        .flat_map(|node| node.list_of("containers"))
        .filter(|found| match container {
            Some(name) => found.text_of("name") == Some(name),
            None => runs_the_reference(found),
        })
        .collect();
    match containers.as_slice() {
        [one] => Ok(of_container(one, &documents)),
        [] => Err(wrong(match container {
            Some(name) => format!("no container is called `{name}`"),
            None => "no container runs ratelimit: name one with --container".to_owned(),
        })),
        several => {
            let names: Vec<&str> = several.iter().filter_map(|one| one.text_of("name")).collect();
            Err(wrong(format!(
                "several containers may be meant: choose with --container: {}",
                names.join(", ")
            )))
        }
    }
}

fn runs_the_reference(container: &Plain) -> bool {
    let image = container.text_of("image").unwrap_or_default();
    let sets = |name: &str| container.list_of("env").iter().any(|env| env.text_of("name") == Some(name));
    image.contains("ratelimit") || sets("RUNTIME_SUBDIRECTORY") || sets("CONFIG_GRPC_XDS_SERVER_URL")
}

fn of_container(container: &Plain, documents: &[Plain]) -> Environment {
    let mut environment = Environment::default();
    // What `env` says wins over `envFrom`, as in Kubernetes.
    for from in container.list_of("envFrom") {
        for (kind, of) in [("ConfigMap", "configMapRef"), ("Secret", "secretRef")] {
            let Some(name) = from.get(of).and_then(|of| of.text_of("name")) else { continue };
            let data = documents.iter().find(|document| {
                let metadata = document.get("metadata").and_then(|metadata| metadata.text_of("name"));
                document.text_of("kind") == Some(kind) && metadata == Some(name)
            });
            let prefix = from.text_of("prefix").unwrap_or_default();
            match data.and_then(|document| document.get("data")).map(|data| &data.value) {
                // A Secret's values are encoded, and none of our business.
                Some(Value::Map(pairs)) if kind == "ConfigMap" => {
                    environment.known.extend(pairs.iter().filter_map(|(key, value)| {
                        Some((format!("{prefix}{key}"), value.text()?.to_owned()))
                    }))
                }
                _ => {
                    environment.unseen.insert(format!("{prefix}*"), format!("all of {kind} {name}"));
                }
            }
        }
    }
    for variable in container.list_of("env") {
        let Some(name) = variable.text_of("name") else { continue };
        environment.known.remove(name);
        match (variable.text_of("value"), variable.get("valueFrom")) {
            (_, Some(from)) => {
                environment.unseen.insert(name.to_owned(), source(from));
            }
            (value, None) => {
                environment.known.insert(name.to_owned(), value.unwrap_or_default().to_owned());
            }
        }
    }
    environment
}

/// `Secret redis, key password`
fn source(from: &Plain) -> String {
    for (what, of) in [("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")] {
        if let Some(of) = from.get(of) {
            let part = |name| of.text_of(name).unwrap_or("?").to_owned();
            return format!("{what} {}, key {}", part("name"), part("key"));
        }
    }
    "the pod's own fields".to_owned()
}

/// Whether a setting of ours has this name, or one lists it, or a library of ours reads it.
pub(super) fn is_ours(name: &str) -> bool {
    let read_besides =
        ["DOG_STATSD_MOGRIFIER_", "OTEL_BSP_", "OTEL_EXPORTER_OTLP_", "OTEL_RESOURCE_ATTRIBUTES"];
    settings::table().iter().any(|row| row.name == name)
        || read_besides.iter().any(|beginning| name.starts_with(beginning))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inner;
        }
    }
    value
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|why| Failure::usage(format!("{} cannot be read: {why}", path.display())))
}
