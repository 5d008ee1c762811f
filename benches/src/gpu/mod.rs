//! Measurements of GPUs, case by case.
//!
//! A case makes what it needs, measures for about a second and gives everything back, so that cases that fail leave the
//! others alone. Contenders are measured in turn, and figures are medians.

mod attention;
mod bandwidth;
mod chain;
mod clock;
mod compile_times;
mod convolutions;
mod copies;
mod launches;
mod models;
mod precision;
mod products;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tensorc::runtime::gpu::Driver;
use tensorc::{Compiler, Options, VendorLibraries};
use tensorc_nd::{Runtime, RuntimeOptions};

use crate::figures::Report;
use precision::Precision;

/// What a failed measurement says.
pub type MeasurementFailure = Box<dyn Error>;

/// How large what is measured is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// As it takes to keep a GPU busy.
    Device,
    /// For the interpreter's GPU, on which times mean nothing: about a second for a case.
    Small,
}

/// Where and for how long is measured.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The driver of the GPU.
    pub driver: Arc<dyn Driver>,
    /// How large the measured cases are.
    pub size: Size,
    /// How long the contenders of a comparison are measured, after they were warmed up; what must run is run however long it takes.
    pub time: Duration,
}

impl Setup {
    /// A setup for the GPU of a driver.
    pub fn new(driver: Arc<dyn Driver>, size: Size) -> Setup {
        Setup { driver, size, time: Duration::from_millis(800) }
    }

    fn options(&self, precision: Precision, gpu_libraries: VendorLibraries) -> Options {
        let mut options = Options { gpus: vec![self.driver.clone()], gpu_libraries, ..Options::default() };
        options.passes.tf32 = precision == Precision::Tf32;
        options
    }

    fn runtime(&self, precision: Precision, libraries: VendorLibraries) -> Result<Runtime, MeasurementFailure> {
        self.runtime_of(Compiler::new(self.options(precision, libraries))?)
    }

    /// Arrays are made on the device, and calls are not collected: what is pushed runs as it is.
    fn runtime_of(&self, compiler: Compiler) -> Result<Runtime, MeasurementFailure> {
        let options = RuntimeOptions { device: self.driver.device(), window: 0, ..RuntimeOptions::default() };
        Ok(Runtime::with_compiler(compiler, options)?)
    }
}

type CaseRun = Box<dyn FnOnce(&Setup) -> Result<Report, MeasurementFailure> + Send>;

/// One thing to measure.
pub struct Case {
    /// Different for all cases of a size.
    pub name: String,
    run: CaseRun,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

impl Case {
    fn new(name: String, run: impl FnOnce(&Setup) -> Result<Report, MeasurementFailure> + Send + 'static) -> Case {
        Case { name, run: Box::new(run) }
    }

    /// Measures. What goes wrong is a failed report with the message.
    pub fn run(self, setup: &Setup) -> Report {
        (self.run)(setup).unwrap_or_else(|error| Report::failed(&error))
    }
}

/// Cases of one kind.
pub type CaseGroup = (&'static str, fn(Size) -> Vec<Case>);

/// Every kind of measurement by name, the most telling first.
pub const GROUPS: [CaseGroup; 7] = [
    ("products", products::cases),
    ("bandwidth", bandwidth::cases),
    ("models", models::cases),
    ("launches", launches::cases),
    ("attention", attention::cases),
    ("convolutions", convolutions::cases),
    ("compile", compile_times::cases),
];

/// What a library of the GPU's maker adds to a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Peer {
    CuBlasLt,
    CuDnn,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Peer::CuBlasLt => "cuBLASLt",
            Peer::CuDnn => "cuDNN",
        }
    }

    fn libraries(self) -> VendorLibraries {
        VendorLibraries { products: self == Peer::CuBlasLt, convolutions: self == Peer::CuDnn }
    }

    fn is_installed(self, driver: &dyn Driver) -> bool {
        let here = tensorc::gpu::libraries(driver);
        match self {
            Peer::CuBlasLt => here.products,
            Peer::CuDnn => here.convolutions,
        }
    }
}
