//! Messages between the processes of an MPI job.
//!
//! Receives are matched with messages here, not by the library: `MPI_Improbe` tells the length of a message, and the library
//! is given memory only for one that fits. Open MPI 4.1 writes a long message past the end of memory that is too short
//! before it reports `MPI_ERR_TRUNCATE`. The memory of a pending request belongs to the transport and is leaked when the
//! request is given up, because the library may still use it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use bytes::Bytes;
use mpi::ffi;

use super::{ReceiveId, Received, Receives, Tag, Transport, TransportError, check};

/// Whether this process has initialised MPI here.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The longest message: the library counts bytes by `int`.
const MAX_MESSAGE: usize = c_int::MAX as usize;

/// Codes that bindings give as unsigned numbers.
const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;
const IN_STATUS: c_int = ffi::MPI_ERR_IN_STATUS as c_int;

/// Messages that one poll takes notice of.
const NOTICED: usize = 256;

/// The processes that a launcher (`mpirun`) started, or this process alone without one.
///
/// Any thread may use the transport where the library grants `MPI_THREAD_SERIALIZED`, which Open MPI and MPICH do;
/// otherwise only the thread that made it.
pub struct MpiTransport {
    comm: ffi::MPI_Comm,
    rank: usize,
    size: usize,
    /// The only thread that may use the library, where not every thread may.
    bound: Option<ThreadId>,
    /// Receives without a message, and messages without a receive; in order, by sender and tag.
    receives: BTreeMap<(usize, Tag), Receives>,
    arrived: BTreeMap<(usize, Tag), VecDeque<Arrived>>,
    /// Requests that have not ended, and what belongs to each.
    requests: Vec<ffi::MPI_Request>,
    pending: Vec<Pending>,
    /// Room for the answer of `MPI_Testsome`, as long as `requests`.
    indices: Vec<c_int>,
    statuses: Vec<MaybeUninit<ffi::MPI_Status>>,
    /// Errors that [`Transport::poll`] has not reported.
    errors: VecDeque<TransportError>,
    unsent: usize,
    next: u64,
    open: bool,
}

/// A message whose memory is to be given.
struct Arrived {
    message: ffi::MPI_Message,
    length: usize,
}

// SAFETY: handles of MPI have no affinity to a thread. The library is initialised for calls by one thread at a time
// (`&mut self` sees to that), or else `bound` refuses calls of other threads.
unsafe impl Send for MpiTransport {}

/// Memory that the library reads or writes until a request has ended. It does not move with this value, and is leaked
/// unless the request ended.
enum Pending {
    Send(ManuallyDrop<Bytes>),
    Receive(ReceiveId, ManuallyDrop<Vec<u8>>),
    /// A message that was too long for its receive.
    Discard(ManuallyDrop<Vec<u8>>),
}

impl MpiTransport {
    /// Initialises MPI in this process, and joins the group of all processes of the job.
    ///
    /// The library itself ends the process where it cannot start, for instance without its daemon.
    ///
    /// # Errors
    /// MPI was initialised in this process before, or the library reports an error.
    pub fn init() -> Result<MpiTransport, TransportError> {
        let (mut initialised, mut level) = (0, 0);
        // SAFETY: the call is allowed at any time and writes one int.
        checked("MPI_Initialized", unsafe { ffi::MPI_Initialized(&mut initialised) })?;
        if initialised != 0 || INITIALISED.swap(true, Ordering::SeqCst) {
            return Err(TransportError::Initialised);
        }
        // SAFETY: no thread has initialised MPI before, and null stands for absent arguments.
        let code =
            unsafe { ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), ffi::RSMPI_THREAD_SERIALIZED, &mut level) };
        checked("MPI_Init_thread", code)?;
        // SAFETY: MPI is initialised, by this thread; constants of the library are only read.
        unsafe {
            let errors = ffi::RSMPI_ERRORS_RETURN;
            checked("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, errors))?;
            let mut comm = ffi::RSMPI_COMM_NULL;
            checked("MPI_Comm_dup", ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut comm))?;
            checked("MPI_Comm_set_errhandler", ffi::MPI_Comm_set_errhandler(comm, errors))?;
            let (mut rank, mut size) = (0, 0);
            checked("MPI_Comm_rank", ffi::MPI_Comm_rank(comm, &mut rank))?;
            checked("MPI_Comm_size", ffi::MPI_Comm_size(comm, &mut size))?;
            let bound = (level < ffi::RSMPI_THREAD_SERIALIZED).then(|| thread::current().id());
            Ok(MpiTransport::new(comm, rank as usize, size as usize, bound))
        }
    }

    fn new(comm: ffi::MPI_Comm, rank: usize, size: usize, bound: Option<ThreadId>) -> MpiTransport {
        MpiTransport {
            comm,
            rank,
            size,
            bound,
            receives: BTreeMap::new(),
            arrived: BTreeMap::new(),
            requests: vec![],
            pending: vec![],
            indices: vec![],
            statuses: vec![],
            errors: VecDeque::new(),
            unsent: 0,
            next: 0,
            open: true,
        }
    }

    /// Whether the library may be called now, here.
    fn ready(&self, call: &'static str) -> Result<(), TransportError> {
        if !self.open {
            return Err(TransportError::Closed { rank: self.rank });
        }
        match self.bound {
            Some(bound) if bound != thread::current().id() => Err(TransportError::WrongThread { call }),
            _ => Ok(()),
        }
    }

    fn add(&mut self, request: ffi::MPI_Request, pending: Pending) {
        self.requests.push(request);
        self.pending.push(pending);
        self.indices.push(0);
        self.statuses.push(MaybeUninit::zeroed());
    }

    /// Makes progress, and takes notice of messages that have come.
    fn probe(&mut self) -> Result<(), TransportError> {
        for _ in 0..NOTICED {
            let mut found = 0;
            let mut status = MaybeUninit::<ffi::MPI_Status>::zeroed();
            // SAFETY: the communicator is open, and the three results have room.
            let message = unsafe {
                let mut message = ffi::RSMPI_MESSAGE_NULL;
                let (from, tag) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
                let code = ffi::MPI_Improbe(from, tag, self.comm, &mut found, &mut message, status.as_mut_ptr());
                checked("MPI_Improbe", code)?;
                message
            };
            if found == 0 {
                break;
            }
            // SAFETY: the library has written the status of the message that it found; zeros are a valid one, too.
            let status = unsafe { status.assume_init() };
            let stream = (status.MPI_SOURCE as usize, status.MPI_TAG as Tag);
            let arrived = Arrived { message, length: length(&status)? };
            self.arrived.entry(stream).or_default().push_back(arrived);
            self.unite(stream)?;
        }
        Ok(())
    }

    /// Begins the receives of a stream that have a message.
    fn unite(&mut self, stream: (usize, Tag)) -> Result<(), TransportError> {
        let (Some(receives), Some(arrived)) = (self.receives.get_mut(&stream), self.arrived.get_mut(&stream)) else {
            return Ok(());
        };
        let count = receives.len().min(arrived.len());
        let united: Vec<_> = receives.drain(..count).zip(arrived.drain(..count)).collect();
        if receives.is_empty() {
            self.receives.remove(&stream);
        }
        if arrived.is_empty() {
            self.arrived.remove(&stream);
        }
        for ((id, mut into), Arrived { message, length }) in united {
            if length <= into.len() {
                into.truncate(length);
                self.begin_receive(message, into, |into| Pending::Receive(id, into))?;
                continue;
            }
            let (from, tag) = stream;
            self.errors.push_back(TransportError::Truncated { from, tag, expected: into.len() });
            // The send ends only when its message is received; where there is no memory for that, it does not.
            let mut scratch = vec![];
            if scratch.try_reserve_exact(length).is_ok() {
                scratch.extend(std::iter::repeat_n(0, length));
                self.begin_receive(message, scratch, Pending::Discard)?;
            }
        }
        Ok(())
    }

    /// Gives a message its memory, which has its length.
    fn begin_receive(
        &mut self,
        mut message: ffi::MPI_Message,
        into: Vec<u8>,
        pending: impl FnOnce(ManuallyDrop<Vec<u8>>) -> Pending,
    ) -> Result<(), TransportError> {
        let length = counted(into.len())?;
        let mut into = ManuallyDrop::new(into);
        // SAFETY: the message was not received before. `pending` keeps the memory, of `length` bytes, and nothing else uses
        // it until the request has ended.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let to = into.as_mut_ptr().cast();
            let code = ffi::MPI_Imrecv(to, length, ffi::RSMPI_UINT8_T, &mut message, &mut request);
            checked("MPI_Imrecv", code)?;
            request
        };
        self.add(request, pending(into));
        Ok(())
    }

    /// Makes progress, and returns how many requests have ended and whether their statuses hold errors.
    fn test(&mut self) -> Result<(usize, bool), TransportError> {
        if self.requests.is_empty() {
            return Ok((0, false));
        }
        let mut ended = 0;
        // SAFETY: the three arrays are of the length given, and each request is active.
        let code = unsafe {
            ffi::MPI_Testsome(
                self.requests.len() as c_int,
                self.requests.as_mut_ptr(),
                &mut ended,
                self.indices.as_mut_ptr(),
                self.statuses.as_mut_ptr().cast(),
            )
        };
        if class(code) != IN_STATUS {
            checked("MPI_Testsome", code)?;
        }
        Ok((usize::try_from(ended).unwrap_or(0), code != SUCCESS))
    }

    /// What an ended request gives. The memory of one that failed stays leaked.
    fn end(&mut self, pending: Pending, result: Result<(), TransportError>) -> Option<Received> {
        self.unsent -= usize::from(matches!(pending, Pending::Send(_)));
        match (result, pending) {
            (Err(error), _) => self.errors.push_back(error),
            (Ok(()), Pending::Receive(id, into)) => {
                return Some(Received { id, bytes: ManuallyDrop::into_inner(into) });
            }
            (Ok(()), Pending::Send(bytes)) => drop(ManuallyDrop::into_inner(bytes)),
            (Ok(()), Pending::Discard(scratch)) => drop(ManuallyDrop::into_inner(scratch)),
        }
        None
    }

    /// Waits until all requests have ended.
    fn complete(&mut self) -> Result<(), TransportError> {
        let mut requests = std::mem::take(&mut self.requests);
        for (request, pending) in requests.iter_mut().zip(std::mem::take(&mut self.pending)) {
            // SAFETY: the request is active.
            checked("MPI_Wait", unsafe { ffi::MPI_Wait(request, ffi::RSMPI_STATUS_IGNORE) })?;
            self.end(pending, Ok(()));
        }
        Ok(())
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn send(&mut self, to: usize, tag: Tag, bytes: Bytes) -> Result<(), TransportError> {
        self.ready("MPI_Isend")?;
        check(to, self.size, tag)?;
        let length = counted(bytes.len())?;
        let bytes = ManuallyDrop::new(bytes);
        let (to, tag) = (to as c_int, c_int::from(tag));
        // SAFETY: `pending` keeps the bytes, which do not move or change, until the request has ended.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let from = bytes.as_ptr().cast();
            let code = ffi::MPI_Isend(from, length, ffi::RSMPI_UINT8_T, to, tag, self.comm, &mut request);
            checked("MPI_Isend", code)?;
            request
        };
        self.unsent += 1;
        self.add(request, Pending::Send(bytes));
        Ok(())
    }

    fn receive(&mut self, from: usize, tag: Tag, into: Vec<u8>) -> Result<ReceiveId, TransportError> {
        self.ready("MPI_Imrecv")?;
        check(from, self.size, tag)?;
        counted(into.len())?;
        let id = ReceiveId(self.next);
        self.next += 1;
        self.receives.entry((from, tag)).or_default().push_back((id, into));
        self.unite((from, tag))?;
        Ok(id)
    }

    fn poll(&mut self, received: &mut Vec<Received>) -> Result<(), TransportError> {
        self.ready("MPI_Testsome")?;
        let before = received.len();
        self.probe()?;
        let (count, failed) = self.test()?;
        // From the last index on, so that what is swapped into a free place is not one that has ended.
        let mut ended: Vec<(usize, usize)> = (0..count).map(|at| (self.indices[at] as usize, at)).collect();
        ended.sort_unstable_by(|a, b| b.cmp(a));
        for (index, at) in ended {
            // SAFETY: the library has written the first `count` statuses.
            let status = unsafe { self.statuses[at].assume_init() };
            self.requests.swap_remove(index);
            let pending = self.pending.swap_remove(index);
            let result = checked("MPI_Testsome", if failed { status.MPI_ERROR } else { SUCCESS });
            received.extend(self.end(pending, result));
        }
        self.indices.truncate(self.requests.len());
        self.statuses.truncate(self.requests.len());
        received[before..].sort_unstable_by_key(|r| r.id);
        self.errors.pop_front().map_or(Ok(()), Err)
    }

    fn unsent(&self) -> usize {
        self.unsent
    }

    /// With `orderly`, finalises MPI, by the thread that initialised it where the library insists on that. Otherwise MPI
    /// is not finalised, since that waits for the other ranks; the process should end soon.
    fn close(&mut self, orderly: bool) {
        let usable = self.ready("MPI_Finalize").is_ok();
        self.open = false;
        self.receives.clear();
        if !orderly || !usable {
            return;
        }
        // A library that reports an error now has lost another rank, which finalising would wait for.
        if self.complete().is_ok() {
            // SAFETY: no request is active, and nothing uses the communicator or MPI after this.
            unsafe {
                if ffi::MPI_Comm_free(&mut self.comm) == SUCCESS {
                    ffi::MPI_Finalize();
                }
            }
        }
    }
}

/// The name and version of the library that this program uses.
///
/// # Errors
/// The library reports an error.
pub fn library_version() -> Result<String, TransportError> {
    let mut text = [0; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize];
    let mut length = 0;
    // SAFETY: the call is allowed at any time, and the text has the size that it asks for.
    let code = unsafe { ffi::MPI_Get_library_version(text.as_mut_ptr(), &mut length) };
    checked("MPI_Get_library_version", code)?;
    Ok(string(&text, length))
}

/// Text that the library has written.
fn string(text: &[c_char], length: c_int) -> String {
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    let bytes: Vec<u8> = text[..length].iter().map(|&c| c as u8).take_while(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

/// The error of a code that a call returned.
fn checked(call: &'static str, code: c_int) -> Result<(), TransportError> {
    if code == SUCCESS {
        return Ok(());
    }
    let mut text = [0; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the text has the size that the call asks for.
    let known = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length) } == SUCCESS;
    let message = if known { string(&text, length) } else { format!("error {code}") };
    Err(TransportError::Library { call, message })
}

/// The class of an error: codes of their own are left to libraries.
fn class(code: c_int) -> c_int {
    let mut class = code;
    if code != SUCCESS {
        // SAFETY: the call writes one int.
        unsafe { ffi::MPI_Error_class(code, &mut class) };
    }
    class
}

/// A length as the library takes it.
fn counted(bytes: usize) -> Result<c_int, TransportError> {
    c_int::try_from(bytes).map_err(|_| TransportError::TooLong { bytes, limit: MAX_MESSAGE })
}

/// Bytes of a message that was found.
fn length(status: &ffi::MPI_Status) -> Result<usize, TransportError> {
    let mut count = 0;
    // SAFETY: the status is one that the library wrote for a message.
    let code = unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) };
    checked("MPI_Get_count", code)?;
    usize::try_from(count).map_err(|_| TransportError::Library {
        call: "MPI_Get_count",
        message: "the length of a message is unknown".to_owned(),
    })
}
