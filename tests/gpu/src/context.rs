//! What cases are given: the device, the bundle's files, and where what explains a failure goes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tensorc::runtime::Device;
use tensorc::runtime::gpu::{CodeForm, Driver};
use tensorc::schedule::target::Capability;
use tensorc::{Compiler, Options};
use tensorc_bench::gpu::Size;
use tensorc_nd::Error;
use tensorc_simulator::CountingDriver;

use crate::protocol::folder_name;

/// The name of the device whose kernels the interpreter executes.
pub const INTERPRETED: &str = "interpreted";

pub type Fault = Box<dyn std::error::Error>;

/// A device by the name that `--device` gives it.
pub struct Context {
    name: String,
    driver: OnceLock<Arc<dyn Driver>>,
    failures: PathBuf,
}

impl Context {
    pub fn new(name: &str, failures: PathBuf) -> Context {
        Context { name: name.into(), driver: OnceLock::new(), failures }
    }

    pub fn is_interpreted(&self) -> bool {
        self.name == INTERPRETED
    }

    /// Sizes of measurements: small ones where kernels are executed by an interpreter. `TENSORC_GPU_SMALL` is set by tests whose driver is
    /// none.
    pub fn size(&self) -> Size {
        let is_small = self.is_interpreted() || std::env::var_os("TENSORC_GPU_SMALL").is_some();
        if is_small { Size::Small } else { Size::Device }
    }

    /// The name for `--device` of a process that this one starts.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device, which is opened by the first case that needs it.
    ///
    /// # Errors
    /// No driver is installed, or it has no such device.
    pub fn driver(&self) -> Result<Arc<dyn Driver>, Fault> {
        if let Some(driver) = self.driver.get() {
            return Ok(driver.clone());
        }
        let driver = self.open(self.number()?)?;
        Ok(self.driver.get_or_init(|| driver).clone())
    }

    /// The device and those with the numbers behind its own.
    ///
    /// # Errors
    /// There are not so many.
    pub fn drivers(&self, count: u16) -> Result<Vec<Arc<dyn Driver>>, Fault> {
        let first = self.number()?;
        let later = (1..count).map(|i| self.open(first + i));
        std::iter::once(self.driver()).chain(later).collect()
    }

    fn number(&self) -> Result<u16, Fault> {
        if self.is_interpreted() {
            return Ok(0);
        }
        Ok(self
            .name
            .parse()
            .map_err(|_| format!("--device: `{}` is no number of a GPU, nor {INTERPRETED}", self.name))?)
    }

    fn open(&self, number: u16) -> Result<Arc<dyn Driver>, Fault> {
        match self.is_interpreted() {
            true => Ok(tensorc_simulator::interpreted(Device::accelerator(number))),
            false => Ok(tensorc::gpu::cuda(number)?),
        }
    }

    /// The device with code of a generation of GPUs; none if it is older.
    ///
    /// # Errors
    /// As [`Context::driver`].
    pub fn of_capability(&self, capability: Capability) -> Result<Option<Arc<dyn Driver>>, Fault> {
        if self.is_interpreted() {
            return Ok(Some(tensorc_simulator::interpreted_as(Device::accelerator(0), capability)));
        }
        let driver = self.driver()?;
        let (CodeForm::Ir { capability: has } | CodeForm::Ptx { capability: has }) = driver.form();
        Ok(match capability {
            Capability::Sm90a => (has == 90).then_some(driver),
            Capability::Sm80 => (has >= 80).then(|| Arc::new(CountingDriver::new(driver).of_capability(80)) as _),
        })
    }

    /// The generation whose code the device gets.
    ///
    /// # Errors
    /// As [`Context::driver`].
    pub fn capability(&self) -> Result<Capability, Fault> {
        let (CodeForm::Ir { capability } | CodeForm::Ptx { capability }) = self.driver()?.form();
        Ok(if capability == 90 { Capability::Sm90a } else { Capability::Sm80 })
    }

    /// A compiler for the device.
    ///
    /// # Errors
    /// As [`Context::driver`].
    pub fn compiler(&self) -> Result<Compiler, Fault> {
        Ok(Compiler::new(self.options()?)?)
    }

    /// Options of a compiler for the device.
    ///
    /// # Errors
    /// As [`Context::driver`].
    pub fn options(&self) -> Result<Options, Fault> {
        Ok(Options { gpus: vec![self.driver()?], ..Options::default() })
    }

    /// A new folder for what explains the failure of a case.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn failure_folder(&self, case: &str) -> std::io::Result<PathBuf> {
        let folder = self.failures.join(folder_name(case));
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// Whether the device still does what it is told: after some errors of kernels a process has to start anew.
    pub fn is_lost(&self) -> bool {
        let alive = |driver: &Arc<dyn Driver>| -> Result<(), Error> {
            let compiler = Compiler::new(Options { gpus: vec![driver.clone()], ..Options::default() })?;
            let options = tensorc_nd::RuntimeOptions { device: driver.device(), ..Default::default() };
            let rt = tensorc_nd::Runtime::with_compiler(compiler, options)?;
            rt.zeros(&[4], tensorc::DType::F32)?.to_vec::<f32>().map(drop)
        };
        !self.is_interpreted() && self.driver.get().is_some_and(|driver| alive(driver).is_err())
    }
}

/// The folder with the bundle's files: `$TENSORC_GPU_DATA`, or `data` beside the folder of the program.
pub fn data() -> PathBuf {
    if let Some(folder) = std::env::var_os("TENSORC_GPU_DATA") {
        return folder.into();
    }
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().and_then(Path::parent).map_or_else(|| "data".into(), |root| root.join("data"))
}
