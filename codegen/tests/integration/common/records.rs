//! A store of code in memory, which remembers what happened to its records.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tensorc_codegen::stored::CodeStore;

#[derive(Default)]
pub struct Records {
    pub held: Mutex<BTreeMap<u128, Vec<u8>>>,
    pub put: Mutex<Vec<u128>>,
    pub found: Mutex<usize>,
}

impl CodeStore for Records {
    fn get(&self, number: u128) -> Option<Vec<u8>> {
        let record = self.held.lock().unwrap().get(&number).cloned();
        *self.found.lock().unwrap() += usize::from(record.is_some());
        record
    }

    fn put(&self, number: u128, record: &[u8]) {
        self.held.lock().unwrap().insert(number, record.to_vec());
        self.put.lock().unwrap().push(number);
    }
}
