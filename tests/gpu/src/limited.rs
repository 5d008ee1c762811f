//! A device that gets the code of an older generation.

use std::fmt;
use std::sync::Arc;

use tensorc::runtime::Device;
use tensorc::runtime::gpu::{Code, CodeForm, Driver, DriverError, Function, LaunchStream, Memory, Properties};
use tensorc_codegen::target::Capability;

pub struct Limited {
    inner: Arc<dyn Driver>,
    capability: u32,
}

impl Limited {
    pub fn new(inner: Arc<dyn Driver>, capability: Capability) -> Limited {
        let capability = match capability {
            Capability::Sm80 => 80,
            Capability::Sm90a => 90,
        };
        Limited { inner, capability }
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} as of {}", self.inner, self.capability)
    }
}

impl Driver for Limited {
    fn device(&self) -> Device {
        self.inner.device()
    }

    fn name(&self) -> String {
        self.inner.name()
    }

    fn form(&self) -> CodeForm {
        let capability = self.capability;
        match self.inner.form() {
            CodeForm::Host { .. } => CodeForm::Host { capability },
            CodeForm::Ptx { .. } => CodeForm::Ptx { capability },
        }
    }

    fn properties(&self) -> Result<Option<Properties>, DriverError> {
        self.inner.properties()
    }

    fn load(&self, code: Code) -> Result<Vec<Function>, DriverError> {
        self.inner.load(code)
    }

    fn alloc(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc(bytes)
    }

    fn alloc_pinned(&self, bytes: u64) -> Result<Box<dyn Memory>, DriverError> {
        self.inner.alloc_pinned(bytes)
    }

    fn stream(&self) -> Result<Box<dyn LaunchStream>, DriverError> {
        self.inner.stream()
    }
}
