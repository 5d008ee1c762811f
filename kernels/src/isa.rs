//! Instruction-set ISA levels and their run-time detection.

/// Instruction set a kernel is written for.
///
/// Every ISA level computes the same bits: the sum order of the kernels does not depend on the vector
/// width, and every multiply-add is fused. Products of bf16 are the exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// [`Isa::Avx512`] with its products of bytes and of bf16 (VNNI and BF16), and tile registers for both (AMX).
    Amx,
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
    pub const ALL: [Isa; 5] = [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// Whether this machine can execute the ISA level.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => has_tiles(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::get(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::get(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Amx | Isa::Avx512 | Isa::Avx2 => false,
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

/// Whether the processor computes vectors of 512 bits in halves, beside [`Isa::Avx512`]: Zen 4. Other processors take as long for a half,
/// and Intel's take longer where halves and whole vectors alternate.
#[cfg(target_arch = "x86_64")]
pub(crate) fn halves_are_cheaper() -> bool {
    const AMD: [u32; 3] = [0x6874_7541, 0x6974_6e65, 0x444d_4163];
    const ZEN_4: u32 = 0x19;
    static KNOWN: Extension = Extension::new();
    let (vendor, version) = (|| core::arch::x86_64::__cpuid(0), || core::arch::x86_64::__cpuid(1).eax);
    let family = |version: u32| (version >> 8 & 0xf) + (version >> 20 & 0xff);
    KNOWN.get(|| [vendor().ebx, vendor().edx, vendor().ecx] == AMD && family(version()) == ZEN_4)
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

/// Whether the processor has tile registers for products of bytes and of bf16 (AMX), and the operating system lets the process
/// use them.
#[cfg(target_arch = "x86_64")]
fn has_tiles() -> bool {
    /// Tiles, and their products of bf16 and of bytes.
    const TILES: u32 = 1 << 24 | 1 << 22 | 1 << 25;
    static KNOWN: Extension = Extension::new();
    let edx = || core::arch::x86_64::__cpuid_count(7, 0).edx;
    KNOWN.get(|| edx() & TILES == TILES && has_byte_permutations() && has_bf16_products() && tiles_are_permitted())
}

/// Asks Linux to keep tile registers when it switches between threads of this process; it refuses if it does not know them.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_are_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let outcome: i64;
    // SAFETY: the call has no effect on memory of the process.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => outcome,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    outcome == 0
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_are_permitted() -> bool {
    false
}

/// Whether the processor multiplies numbers of bf16 and adds them in f32.
#[cfg(not(target_arch = "x86_64"))]
pub fn has_bf16_products() -> bool {
    false
}
