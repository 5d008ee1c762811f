//! Library kernels as artifacts link them: a model names those it needs, and the linker drops the rest.

use tensorc_exec::{Routine, routine};

/// Gives library kernels the names that objects of models refer to.
macro_rules! routines {
    ($($name:ident = $routine:ident;)*) => {
        $(
            /// A library kernel, by its name in objects of models.
            #[unsafe(no_mangle)]
            pub static $name: Routine = routine::$routine;
        )*
    };
}

tensorc_exec::library_routines!(routines);
