//! Instruction-set ISA levels and their run-time detection.

/// Instruction set a kernel is written for.
///
/// Every ISA level computes the same bits: the sum order of the kernels does not depend on the vector
/// width, and every multiply-add is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512F with 32 vector registers of 16 lanes.
    Avx512,
    /// AVX2 with FMA: 16 vector registers of 8 lanes.
    Avx2,
    /// NEON: 32 vector registers of 4 lanes.
    Neon,
    /// Any machine. Fused multiply-adds may be library calls.
    Portable,
}

// What the machine has, asked once; the answers are kept in atomics.
#[cfg(target_arch = "x86_64")]
cpufeatures::new!(avx512, "avx512f", "avx2", "fma");
#[cfg(target_arch = "x86_64")]
cpufeatures::new!(avx2, "avx2", "fma");

impl Isa {
    /// Every ISA level, fastest first.
    pub const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// Whether this machine can execute the ISA level.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::get(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::get(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Neon => cfg!(target_arch = "aarch64"),
            Isa::Portable => true,
        }
    }
}

/// The fastest ISA level of this machine.
pub fn isa() -> Isa {
    Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
}

/// What a processor has beside [`Isa::Avx512`], asked once.
#[cfg(target_arch = "x86_64")]
struct Extension(core::sync::atomic::AtomicU8);

#[cfg(target_arch = "x86_64")]
impl Extension {
    const UNKNOWN: u8 = 2;

    const fn new() -> Extension {
        Extension(core::sync::atomic::AtomicU8::new(Extension::UNKNOWN))
    }

    /// `ask` is called where the processor has AVX-512.
    fn get(&self, ask: impl Fn() -> bool) -> bool {
        use core::sync::atomic::Ordering::Relaxed;
        let known = self.0.load(Relaxed);
        if known != Extension::UNKNOWN {
            return known == 1;
        }
        let has = avx512::get() && ask();
        self.0.store(u8::from(has), Relaxed);
        has
    }
}

/// Whether the processor multiplies bytes and adds them in i32, in vectors of all lengths (AVX-512 VNNI and VL), beside
/// [`Isa::Avx512`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_byte_products() -> bool {
    const VNNI: u32 = 1 << 11;
    const VL: u32 = 1 << 31;
    static KNOWN: Extension = Extension::new();
    // The leaf exists where AVX-512 does.
    let leaf = || core::arch::x86_64::__cpuid_count(7, 0);
    KNOWN.get(|| leaf().ecx & VNNI != 0 && leaf().ebx & VL != 0)
}

/// Whether the processor permutes bytes (AVX-512 VBMI and BW), beside [`has_byte_products`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_byte_permutations() -> bool {
    const VBMI: u32 = 1 << 1;
    const BW: u32 = 1 << 30;
    static KNOWN: Extension = Extension::new();
    let leaf = || core::arch::x86_64::__cpuid_count(7, 0);
    KNOWN.get(|| has_byte_products() && leaf().ecx & VBMI != 0 && leaf().ebx & BW != 0)
}

/// Whether the processor multiplies numbers of bf16 and adds them in f32 (AVX-512 BF16), beside [`Isa::Avx512`].
#[cfg(target_arch = "x86_64")]
pub fn has_bf16_products() -> bool {
    const BF16: u32 = 1 << 5;
    static KNOWN: Extension = Extension::new();
    let leaves = || core::arch::x86_64::__cpuid_count(7, 0).eax;
    KNOWN.get(|| leaves() >= 1 && core::arch::x86_64::__cpuid_count(7, 1).eax & BF16 != 0)
}

/// Whether the processor multiplies numbers of bf16 and adds them in f32.
#[cfg(not(target_arch = "x86_64"))]
pub fn has_bf16_products() -> bool {
    false
}
