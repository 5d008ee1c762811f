//! Memory of a launch: every argument an allocation of its own, shared memory of a block, local memory of threads.
//!
//! An allocation begins at a multiple of 16 bytes and of no more, as arguments may.

use super::op::{Access, Space};
use super::shadow::{Cell, Clocks, Conflict, UNDER_WAY, Visit};
use super::types::{low, signed};

/// Bits of an address within an allocation.
const ALLOCATION: u32 = 40;
const START: u64 = 16;
const WINDOW: u32 = 60;

/// What generic addresses of a space have beyond those in the space.
pub(super) fn window(space: Space) -> u64 {
    let number = match space {
        Space::Generic | Space::Global => 0u64,
        Space::Shared => 1,
        Space::Local => 2,
        Space::Param => 3,
    };
    number << WINDOW
}

/// The address of an argument.
pub(super) fn address(argument: usize) -> u64 {
    (argument as u64 + 1) << ALLOCATION | START
}

struct Buffer<'a> {
    bytes: &'a mut [u8],
    /// Empty if nobody may write.
    cells: Vec<Cell>,
    writable: bool,
}

pub(super) struct Memory<'a> {
    /// By argument; those that are no memory are empty.
    buffers: Vec<Buffer<'a>>,
    pub shared: Vec<u8>,
    cells: Vec<Cell>,
    shared_start: usize,
    local: Vec<Vec<u8>>,
    local_written: Vec<Vec<bool>>,
    params: Vec<u8>,
    granules: [usize; 2],
}

/// What an access reaches.
#[derive(Clone, Copy)]
enum Place {
    Global(usize, usize),
    Shared(usize),
    Local(usize),
    Param(usize),
}

type Outcome<T> = Result<T, String>;

impl<'a> Memory<'a> {
    pub fn new(arguments: Vec<(&'a mut [u8], bool)>, params: Vec<u8>, granules: [usize; 2]) -> Memory<'a> {
        let buffer = |(bytes, writable): (&'a mut [u8], bool)| {
            let cells = vec![Cell::written(); if writable { bytes.len().div_ceil(granules[1]) } else { 0 }];
            Buffer { bytes, cells, writable }
        };
        let buffers = arguments.into_iter().map(buffer).collect();
        Memory {
            buffers,
            shared: vec![],
            cells: vec![],
            shared_start: 0,
            local: vec![],
            local_written: vec![],
            params,
            granules,
        }
    }

    /// A block begins: nothing is in its memory but what was there before.
    pub fn begin_block(&mut self, start: usize, shared: usize, local: usize, threads: usize) {
        self.shared_start = start;
        self.shared.clear();
        self.shared.resize(shared, 0xa5);
        self.cells.clear();
        self.cells.resize(shared.div_ceil(self.granules[0]), Cell::default());
        self.local = vec![vec![0xa5; local]; threads];
        self.local_written = vec![vec![false; local]; threads];
    }

    fn place(&self, space: Space, at: u64, bytes: usize) -> Outcome<Place> {
        if !at.is_multiple_of(bytes as u64) {
            return Err(format!("the address {at:#x} is no multiple of {bytes}"));
        }
        let (space, at) = match (space, at >> WINDOW) {
            (Space::Generic, 1) => (Space::Shared, at - window(Space::Shared)),
            (Space::Generic, 2) => (Space::Local, at - window(Space::Local)),
            (Space::Generic, 3) => (Space::Param, at - window(Space::Param)),
            (Space::Generic, _) => (Space::Global, at),
            _ => (space, at),
        };
        let within = |start: usize, length: usize| {
            let first = at as usize;
            let fits = at >= start as u64 && first.checked_add(bytes).is_some_and(|end| end <= length);
            let why = || format!("{bytes} bytes at {at} of memory that has those from {start} to {length}");
            if fits { Ok(first) } else { Err(why()) }
        };
        match space {
            Space::Global | Space::Generic => self.argument(at, bytes),
            Space::Shared => within(self.shared_start, self.shared.len()).map(Place::Shared),
            Space::Local => within(0, self.local.first().map_or(0, Vec::len)).map(Place::Local),
            Space::Param => within(0, self.params.len()).map(Place::Param),
        }
    }

    fn argument(&self, at: u64, bytes: usize) -> Outcome<Place> {
        let number = (at >> ALLOCATION) as usize;
        let offset = (at & ((1 << ALLOCATION) - 1)) as i64 - START as i64;
        match number.checked_sub(1).and_then(|i| Some((i, self.buffers.get(i)?))) {
            Some((i, buffer)) if offset >= 0 && offset as usize + bytes <= buffer.bytes.len() => {
                Ok(Place::Global(i, offset as usize))
            }
            Some((i, buffer)) => {
                Err(format!("{bytes} bytes at {offset} of argument {i}, which has {}", buffer.bytes.len()))
            }
            None => Err(format!("the address {at:#x} is in no argument")),
        }
    }

    fn explain(place: Place, conflict: Conflict, clocks: &Clocks) -> String {
        let what = match place {
            Place::Global(i, at) => format!("byte {at} of argument {i}"),
            Place::Shared(at) => format!("byte {at} of shared memory"),
            Place::Local(at) | Place::Param(at) => format!("byte {at}"),
        };
        match conflict {
            Conflict::Race(actor) if actor < clocks.threads => format!("{what}: a race with thread {actor}"),
            Conflict::Race(_) => format!("{what}: a race with a copy or product under way"),
            Conflict::OtherBlock => format!("{what}: a race with another block"),
            Conflict::Unwritten => format!("{what} was never written"),
            Conflict::Pending => format!("{what}: a copy to it is not awaited"),
            Conflict::Barrier => format!("{what} is used as a barrier, or as none"),
            Conflict::Constant => format!("{what} is written, but read past the nearest cache"),
            Conflict::Unfenced => {
                format!("{what} was written by a thread, without a fence for copies and matrix units")
            }
        }
    }

    /// The bytes of a place and their cells.
    fn cells(&mut self, place: Place, bytes: usize) -> &mut [Cell] {
        let (cells, at, granule) = match place {
            Place::Global(i, at) => (&mut self.buffers[i].cells, at, self.granules[1]),
            Place::Shared(at) => (&mut self.cells, at, self.granules[0]),
            Place::Local(_) | Place::Param(_) => return &mut [],
        };
        if cells.is_empty() {
            return cells;
        }
        &mut cells[at / granule..=(at + bytes - 1) / granule]
    }

    fn bytes(&mut self, place: Place, thread: usize, bytes: usize) -> &mut [u8] {
        match place {
            Place::Global(i, at) => &mut self.buffers[i].bytes[at..at + bytes],
            Place::Shared(at) => &mut self.shared[at..at + bytes],
            Place::Local(at) => &mut self.local[thread][at..at + bytes],
            Place::Param(at) => &mut self.params[at..at + bytes],
        }
    }

    fn visit(
        &mut self,
        (place, bytes): (Place, usize),
        clocks: &Clocks,
        mut f: impl FnMut(&mut Cell) -> Result<(), Conflict>,
    ) -> Outcome<()> {
        for cell in self.cells(place, bytes) {
            f(cell).map_err(|conflict| Self::explain(place, conflict, clocks))?;
        }
        Ok(())
    }

    pub fn load(
        &mut self,
        access: &Access,
        at: u64,
        thread: usize,
        clocks: &Clocks,
        mut to: impl FnMut(usize, u64),
    ) -> Outcome<()> {
        let (each, count) = (usize::from(access.bytes), access.registers.count as usize);
        let place = self.place(access.space, at, each * count)?;
        let visit = Visit::of(clocks, thread);
        self.visit((place, each * count), clocks, |cell| cell.read(visit, access.constant))?;
        if let Place::Local(at) = place
            && self.local_written[thread][at..at + each * count].contains(&false)
        {
            return Err(Self::explain(place, Conflict::Unwritten, clocks));
        }
        let bytes = self.bytes(place, thread, each * count);
        for (i, element) in bytes.chunks_exact(each).enumerate() {
            let value = number(element);
            let wide = if access.signed { signed(8 * each as u32, value) as u64 } else { value };
            to(i, low(access.bits.into(), wide));
        }
        Ok(())
    }

    pub fn store(
        &mut self,
        access: &Access,
        at: u64,
        thread: usize,
        clocks: &Clocks,
        from: impl Fn(usize) -> u64,
    ) -> Outcome<()> {
        let (each, count) = (usize::from(access.bytes), access.registers.count as usize);
        let place = self.place(access.space, at, each * count)?;
        self.check_writable(place)?;
        let visit = Visit::of(clocks, thread);
        self.visit((place, each * count), clocks, |cell| {
            cell.check_write(visit)?;
            cell.note_write(visit);
            Ok(())
        })?;
        if let Place::Local(at) = place {
            self.local_written[thread][at..at + each * count].fill(true);
        }
        for (i, element) in self.bytes(place, thread, each * count).chunks_exact_mut(each).enumerate() {
            element.copy_from_slice(&from(i).to_le_bytes()[..each]);
        }
        Ok(())
    }

    fn check_writable(&self, place: Place) -> Outcome<()> {
        match place {
            Place::Global(i, _) if !self.buffers[i].writable => Err(format!("argument {i} is only to be read")),
            Place::Param(_) => Err("parameters are only to be read".into()),
            _ => Ok(()),
        }
    }

    /// Replaces an element at once, and gives what was there.
    pub fn update(
        &mut self,
        (space, at, bytes): (Space, u64, usize),
        thread: usize,
        clocks: &Clocks,
        f: impl FnOnce(u64) -> u64,
    ) -> Outcome<u64> {
        let place = self.place(space, at, bytes)?;
        self.check_writable(place)?;
        let visit = Visit::of(clocks, thread);
        self.visit((place, bytes), clocks, |cell| cell.update(visit))?;
        let memory = self.bytes(place, thread, bytes);
        let old = number(memory);
        memory.copy_from_slice(&f(old).to_le_bytes()[..bytes]);
        Ok(old)
    }

    /// Reads for something other than a load: bytes of a space at a multiple of as many.
    pub fn read(&mut self, space: Space, at: u64, bytes: usize, visit: Visit<'_>, clocks: &Clocks) -> Outcome<&[u8]> {
        let place = self.place(space, at, bytes)?;
        self.visit((place, bytes), clocks, |cell| cell.read(visit, false))?;
        Ok(self.bytes(place, 0, bytes))
    }

    /// Bytes of an argument that the copy engine reads.
    pub fn fetch(
        &mut self,
        argument: usize,
        at: usize,
        bytes: usize,
        visit: Visit<'_>,
        clocks: &Clocks,
    ) -> Outcome<&[u8]> {
        let place = self.argument(address(argument) + at as u64, bytes)?;
        self.visit((place, bytes), clocks, |cell| cell.read(visit, false))?;
        Ok(self.bytes(place, 0, bytes))
    }

    /// A write to shared memory begins: of a copy that is pending until somebody awaits it, or of the copy engine.
    pub fn begin_write(
        &mut self,
        at: u64,
        bytes: usize,
        visit: Visit<'_>,
        pending: bool,
        clocks: &Clocks,
    ) -> Outcome<()> {
        let place = self.place(Space::Shared, at, bytes)?;
        self.visit((place, bytes), clocks, |cell| {
            cell.check_write(visit)?;
            cell.note_write(visit);
            cell.pending = pending;
            Ok(())
        })
    }

    /// A pending write is awaited: as if the thread wrote now.
    pub fn end_write(&mut self, at: u64, value: &[u8], visit: Visit<'_>) -> Outcome<()> {
        let place = self.place(Space::Shared, at, value.len())?;
        for cell in self.cells(place, value.len()) {
            cell.pending = false;
            cell.note_write(visit);
        }
        self.bytes(place, 0, value.len()).copy_from_slice(value);
        Ok(())
    }

    /// Bytes come that the copy engine wrote.
    pub fn put_shared(&mut self, at: usize, value: &[u8]) {
        self.shared[at..at + value.len()].copy_from_slice(value);
    }

    /// A product's read of shared memory begins.
    pub fn begin_read(
        &mut self,
        at: u64,
        bytes: usize,
        (actor, thread): (usize, usize),
        clocks: &Clocks,
    ) -> Outcome<()> {
        let visit = Visit::by(clocks, actor, thread, UNDER_WAY);
        self.read(Space::Shared, at, bytes, visit, clocks).map(drop)
    }

    pub fn end_read(&mut self, at: u64, bytes: usize, actor: usize, time: u32) {
        if let Ok(place) = self.place(Space::Shared, at, bytes) {
            self.cells(place, bytes).iter_mut().for_each(|cell| cell.finish_read(actor, time));
        }
    }

    /// Sets a barrier of 8 bytes up, or makes it plain memory again.
    pub fn set_barrier(&mut self, at: u64, thread: usize, barrier: bool, clocks: &Clocks) -> Outcome<()> {
        let place = self.place(Space::Shared, at, 8)?;
        let visit = Visit::of(clocks, thread);
        self.visit((place, 8), clocks, |cell| {
            cell.barrier = false;
            cell.check_write(visit)?;
            cell.note_write(visit);
            (cell.barrier, cell.written) = (barrier, barrier);
            Ok(())
        })
    }

    pub fn use_barrier(&mut self, at: u64, thread: usize, clocks: &Clocks) -> Outcome<()> {
        let place = self.place(Space::Shared, at, 8)?;
        let visit = Visit::of(clocks, thread);
        self.visit((place, 8), clocks, |cell| cell.use_barrier(visit))
    }
}

/// Bytes as a number.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}
