//! Results that the interpreter gave when the bundle was made: digests of cases, by sections.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::context::{Fault, data};

/// Name of the file in the bundle's data.
const FILE: &str = "stored.json";

/// Digests of each case's results, by section and name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Stored(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Stored {
    /// Those of the bundle.
    ///
    /// # Errors
    /// The file is not there or damaged.
    pub fn load() -> Result<Stored, Fault> {
        let path = data().join(FILE);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?)
    }

    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), Fault> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self)? + "\n";
        Ok(fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?)
    }

    pub fn add(&mut self, section: &str, case: &str, digests: Vec<String>) {
        self.0.entry(section.into()).or_default().insert(case.into(), digests);
    }

    /// # Errors
    /// There is no such case.
    pub fn of(&self, section: &str, case: &str) -> Result<&[String], Fault> {
        let found = self.0.get(section).and_then(|cases| cases.get(case));
        Ok(found.ok_or_else(|| format!("{FILE} has no result of `{case}` for {section}"))?)
    }
}

/// Sections of several collections.
impl FromIterator<Stored> for Stored {
    fn from_iter<I: IntoIterator<Item = Stored>>(parts: I) -> Stored {
        Stored(parts.into_iter().flat_map(|part| part.0).collect())
    }
}
