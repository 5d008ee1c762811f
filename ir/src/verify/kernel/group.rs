//! Rules of what groups of warps do: roles, barriers, tiles and their products.

use tensorc_abi::DType;

use super::state::{KernelCheck, LaunchLevel, Spread, Verifier};

use crate::kir::{
    Buf, BufferPlace, GROUP, GROUP_ROWS, GroupMma, Kernel, MemorySpace, Stmt, TILE_ALIGNMENT, TensorMap, TileCopy,
    TileOperand, WARP, WarpRole, panel,
};

/// Registers of a multiprocessor.
const REGISTERS: u32 = 64 << 10;
/// Most arrivals a barrier counts.
const MAX_ARRIVALS: u32 = (1 << 20) - 1;
/// Most bytes a phase of a barrier counts.
const MAX_PHASE_BYTES: u32 = (1 << 20) - 1;
/// Most rows of a box, and bytes between the rows of a matrix.
const MAX_BOX_ROWS: u32 = 256;
const MAX_STRIDE_BYTES: u64 = 1 << 40;
/// Most elements of a matrix along one side.
const MAX_EXTENT: u64 = 1 << 32;
/// Bytes that distances in global memory are multiples of.
const PIECE_BYTES: u64 = 16;

impl Verifier<'_> {
    /// The program of a thread: barriers are initialised and ordered before warps part, at the end.
    pub(super) fn program(&mut self, program: &[Stmt]) -> KernelCheck {
        let (mut begun, mut ordered) = (vec![], true);
        for (i, stmt) in program.iter().enumerate() {
            match stmt {
                Stmt::InitBarriers { buf, .. } => {
                    if begun.contains(buf) {
                        return Err(format!("the barriers `{}` are initialised twice", self.name(*buf)));
                    }
                    begun.push(*buf);
                    ordered = false;
                }
                Stmt::Barrier => ordered = true,
                Stmt::Roles(_) if i + 1 < program.len() => return Err("warps that parted do not meet again".into()),
                Stmt::Roles(_) if !ordered => return Err("barriers are initialised without a barrier behind".into()),
                _ => {}
            }
            if let Stmt::InitBarriers { .. } | Stmt::Roles(_) = stmt {
                match stmt {
                    Stmt::InitBarriers { buf, arrivals } => self.init_barriers(*buf, *arrivals)?,
                    Stmt::Roles(roles) => self.roles(roles)?,
                    _ => {}
                }
            } else {
                self.stmt(stmt, false)?;
            }
        }
        let unused =
            |b: &(usize, &crate::kir::BufInfo)| b.1.space == MemorySpace::Barrier && !begun.contains(&Buf(b.0 as u32));
        match self.k.buffers.iter().enumerate().find(unused) {
            Some((_, info)) => Err(format!("the barriers `{}` are never initialised", info.name)),
            None => Ok(()),
        }
    }

    fn name(&self, buf: Buf) -> &str {
        self.k.buffers.get(buf.0 as usize).map_or("?", |info| &info.name)
    }

    fn init_barriers(&self, buf: Buf, arrivals: u32) -> KernelCheck {
        self.place(buf, &crate::index::Index::default(), false)?;
        match self.k.buf(buf).space {
            MemorySpace::Barrier if (1..=MAX_ARRIVALS).contains(&arrivals) => Ok(()),
            MemorySpace::Barrier => Err(format!("a barrier of {arrivals} arrivals")),
            _ => Err(format!("`{}` holds no barriers", self.name(buf))),
        }
    }

    fn roles(&mut self, roles: &[WarpRole]) -> KernelCheck {
        let threads = self.k.launch().map_or(0, |launch| launch.threads);
        let (mut next, mut registers) = (0, 0);
        for role in roles {
            let (first, end) = role.warps;
            if first != next || end <= first || !(first * WARP as u32).is_multiple_of(GROUP as u32) {
                return Err(format!(
                    "a role of warps {first} to {end}, where whole groups of four from {next} on are due"
                ));
            }
            if !(24..=256).contains(&role.registers) || !role.registers.is_multiple_of(8) {
                return Err(format!("a role with {} registers: a multiple of 8 from 24 to 256", role.registers));
            }
            next = end;
            registers += (end - first) * WARP as u32 * role.registers;
        }
        if next * WARP as u32 != threads || !threads.is_multiple_of(GROUP as u32) {
            return Err(format!("roles of {next} warps in a block of {threads} threads"));
        }
        // What a block is given: as many registers for each thread as fit, a multiple of 8.
        if registers > REGISTERS / threads / 8 * 8 * threads {
            return Err(format!("roles with {registers} registers"));
        }
        let control = self.narrow(Spread::Group);
        (self.level, self.certain) = (LaunchLevel::Role, false);
        roles.iter().try_for_each(|role| self.block(&role.body))?;
        (self.level, self.control) = (LaunchLevel::Threads, control);
        Ok(())
    }

    /// Statements that stand in roles alone.
    pub(super) fn group_stmt(&mut self, stmt: &Stmt) -> KernelCheck {
        match stmt {
            Stmt::InitBarriers { .. } | Stmt::Roles(_) => {
                Err("barriers are initialised, and warps part, in the loop of threads itself".into())
            }
            _ if self.level != LaunchLevel::Role => Err("a statement of warps must be in a role".into()),
            Stmt::Arrive { barrier, bytes } => {
                self.together("an arrival")?;
                match *bytes <= MAX_PHASE_BYTES {
                    true => self.barrier(barrier),
                    false => Err(format!("a phase of {bytes} bytes")),
                }
            }
            Stmt::AwaitBarrier { barrier, phase } => {
                self.together("a wait for a barrier")?;
                self.index(phase)?;
                match self.index_spread(phase) {
                    Spread::Thread => Err("threads of a warp wait for different phases".into()),
                    _ => self.barrier(barrier),
                }
            }
            Stmt::CopyTile(copy) => self.copy_tile(copy),
            Stmt::GroupMma(mma) => self.group_mma(mma),
            Stmt::AwaitProducts { sums, .. } => {
                self.grouped("a wait for products")?;
                self.at(&BufferPlace::new(*sums, Default::default()), MemorySpace::Register, 1).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// The type of a tile.
    fn dtype_of(&self, place: &BufferPlace) -> KernelCheck<DType> {
        match self.k.buffers.get(place.buf.0 as usize) {
            Some(info) if info.space == MemorySpace::Tile => Ok(info.dtype),
            Some(info) => Err(format!("`{}` is no tile", info.name)),
            None => Err("a buffer is not declared".into()),
        }
    }

    /// What all threads of a group of warps do at once.
    fn grouped(&self, what: &str) -> KernelCheck {
        match self.control {
            Spread::Block | Spread::Group => Ok(()),
            _ => Err(format!("{what} that some threads of a group of warps may not reach")),
        }
    }

    fn barrier(&self, place: &BufferPlace) -> KernelCheck {
        self.at(place, MemorySpace::Barrier, 1)?;
        match self.index_spread(&place.index) {
            Spread::Thread => Err("threads of a warp use different barriers".into()),
            _ => Ok(()),
        }
    }

    fn copy_tile(&self, copy: &TileCopy) -> KernelCheck {
        self.together("a copy of a tile")?;
        self.barrier(&copy.barrier)?;
        let TensorMap { buf, rows, columns, stride, box_rows, ref batch } = copy.map;
        let dtype = self.dtype_of(&copy.into)?;
        self.at(&copy.into, MemorySpace::Tile, u64::from(box_rows) * panel(dtype) as u64)?;
        for index in copy.at.iter().chain(&copy.batch) {
            self.index(index)?;
        }
        let coordinates = copy.at.iter().chain(&copy.batch);
        let spread = coordinates.chain([&copy.into.index]).map(|i| self.index_spread(i)).max();
        let Some(info) = self.k.buffers.get(buf.0 as usize) else { return Err("a buffer is not declared".into()) };
        let axes = || std::iter::once((rows, stride)).chain(batch.iter().map(|axis| (axis.extent, axis.stride)));
        let used = axes()
            .try_fold(columns, |used, (extent, stride)| used.checked_add(extent.checked_sub(1)?.checked_mul(stride)?));
        let bytes = |stride: u64| stride.saturating_mul(dtype.size() as u64);
        let apart = |stride: u64| {
            let bytes = bytes(stride);
            bytes < MAX_STRIDE_BYTES && bytes.is_multiple_of(PIECE_BYTES)
        };
        match () {
            () if spread >= Some(Spread::Thread) => Err("threads of a warp copy different tiles".into()),
            () if info.space != MemorySpace::Global || info.writable => {
                Err(format!("tiles are copied from parameters that are only read, which `{}` is not", info.name))
            }
            () if info.dtype != dtype => Err(format!("a copy of {} to {dtype}", info.dtype)),
            () if columns == 0 || columns > stride || used.is_none_or(|n| info.len < n) => {
                Err(format!("a matrix of {rows}×{columns} with rows {stride} apart in `{}` of {}", info.name, info.len))
            }
            () if rows.max(columns) > MAX_EXTENT || !apart(stride) => {
                Err(format!("a matrix of {rows}×{columns} with rows {} bytes apart", bytes(stride)))
            }
            () if batch.len() > TensorMap::MAX_BATCH_AXES || batch.len() != copy.batch.len() => {
                Err(format!("{} coordinates along {} axes of matrices", copy.batch.len(), batch.len()))
            }
            () if !batch.is_sorted_by_key(|axis| axis.stride) => Err("matrices far apart before those nearby".into()),
            () if axes().any(|(extent, stride)| extent > MAX_EXTENT || stride == 0 || !apart(stride)) => {
                Err("matrices at distances that are no multiples of 16 bytes".into())
            }
            () if !(8..=MAX_BOX_ROWS).contains(&box_rows) || !box_rows.is_multiple_of(8) => {
                Err(format!("a box of {box_rows} rows"))
            }
            () => Ok(()),
        }
    }

    fn group_mma(&self, mma: &GroupMma) -> KernelCheck {
        self.grouped("a product of a group of warps")?;
        let GroupMma { columns, depth, .. } = *mma;
        let dtype = self.dtype_of(&mma.a.at)?;
        let (panel, terms) = (panel(dtype) as u32, GroupMma::terms(dtype) as u32);
        let turned = [&mma.a, &mma.b].into_iter().any(|x| x.panels.is_some());
        if turned && dtype.size() != 2 {
            return Err(format!("a product of {dtype} whose neighbours are no terms"));
        }
        let whole = if mma.b.panels.is_some() { panel } else { 8 };
        if !(8..=256).contains(&columns) || !columns.is_multiple_of(whole) {
            return Err(format!("a product of {columns} columns"));
        }
        if !(terms..=panel).contains(&depth) || !depth.is_multiple_of(terms) {
            return Err(format!("a product of {depth} terms"));
        }
        let acc = self.at(&mma.acc, MemorySpace::Register, mma.elements())?;
        let a = self.tile(&mma.a, GROUP_ROWS as u32, depth)?;
        let b = self.tile(&mma.b, columns, depth)?;
        match a == b && GroupMma::takes(a) && acc == DType::F32 {
            true => Ok(()),
            false => Err(format!("a product of {a} and {b} to {acc}")),
        }
    }

    fn tile(&self, operand: &TileOperand, extent: u32, depth: u32) -> KernelCheck<DType> {
        let index = &operand.at.index;
        if self.index_spread(index) > Spread::Group {
            return Err("warps of a group multiply different tiles".into());
        }
        let dtype = self.dtype_of(&operand.at)?;
        let apart = |distance: u32| u64::from(distance).saturating_mul(dtype.size() as u64);
        if let Some(distance) = operand.panels
            && (distance == 0 || !apart(distance).is_multiple_of(TILE_ALIGNMENT))
        {
            return Err(format!("panels {distance} elements apart"));
        }
        let last = operand.place(dtype, 0, extent as usize - 1, depth as usize - 1);
        self.at(&operand.at, MemorySpace::Tile, last as u64 + 1)
    }
}

/// Whether threads may not access a buffer: barriers, and tiles where those are hidden, too.
pub(super) fn is_opaque(kernel: &Kernel, buf: Buf, tiles: bool) -> bool {
    let space = kernel.buffers.get(buf.0 as usize).map(|info| info.space);
    space == Some(MemorySpace::Barrier) || tiles && space == Some(MemorySpace::Tile)
}
