//! Messages between the processes of an MPI job.
//!
//! Every message is a nonblocking send or receive of the library, and one `MPI_Testsome` over all of them makes progress.
//! The memory of a pending request belongs to the transport and is leaked when the request is given up, because the
//! library may still use it.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use bytes::Bytes;
use mpi::ffi;

use super::{ReceiveId, Received, Tag, Transport, TransportError, check};

/// Whether this process has initialised MPI here.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The longest message: the library counts bytes by `int`.
const LONGEST: usize = c_int::MAX as usize;

/// Codes that bindings give as unsigned numbers.
const SUCCESS: c_int = ffi::MPI_SUCCESS as c_int;
const IN_STATUS: c_int = ffi::MPI_ERR_IN_STATUS as c_int;
const TRUNCATE: c_int = ffi::MPI_ERR_TRUNCATE as c_int;

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

// SAFETY: handles of MPI have no affinity to a thread. The library is initialised for calls by one thread at a time
// (`&mut self` sees to that), or else `bound` refuses calls of other threads.
unsafe impl Send for MpiTransport {}

/// Memory that the library reads or writes until a request has ended. It does not move with this value, and is leaked
/// unless the request ended.
enum Pending {
    /// Only keeps the message.
    Send {
        _bytes: ManuallyDrop<Bytes>,
    },
    Receive {
        id: ReceiveId,
        from: usize,
        tag: Tag,
        into: ManuallyDrop<Vec<u8>>,
    },
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

    /// Makes progress, and returns how many requests have ended and whether their statuses hold errors.
    fn test(&mut self) -> Result<(usize, bool), TransportError> {
        let mut ended = 0;
        if self.requests.is_empty() {
            // Sends that have ended may still wait inside of the library, which works only while it is called.
            // SAFETY: the communicator is open.
            let code = unsafe {
                let status = ffi::RSMPI_STATUS_IGNORE;
                ffi::MPI_Iprobe(ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG, self.comm, &mut ended, status)
            };
            return checked("MPI_Iprobe", code).map(|()| (0, false));
        }
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

    /// What an ended request gives.
    fn end(&mut self, pending: Pending, status: &ffi::MPI_Status, code: c_int) -> Option<Received> {
        let result = checked("MPI_Testsome", code);
        match pending {
            Pending::Send { _bytes: bytes } => {
                self.unsent -= 1;
                match result {
                    Ok(()) => drop(ManuallyDrop::into_inner(bytes)),
                    Err(error) => self.errors.push_back(error),
                }
                None
            }
            Pending::Receive { from, tag, into, .. } if class(code) == TRUNCATE => {
                let expected = ManuallyDrop::into_inner(into).len();
                self.errors.push_back(TransportError::Truncated { from, tag, expected });
                None
            }
            Pending::Receive { id, into, .. } => match result.and_then(|()| count(status)) {
                Ok(length) => {
                    let mut bytes = ManuallyDrop::into_inner(into);
                    bytes.truncate(length);
                    Some(Received { id, bytes })
                }
                Err(error) => {
                    self.errors.push_back(error);
                    None
                }
            },
        }
    }

    /// Ends all requests: waits for sends, cancels receives.
    fn complete(&mut self) -> Result<(), TransportError> {
        for (request, pending) in self.requests.iter_mut().zip(self.pending.drain(..)) {
            // SAFETY: the request is active; after the wait the library does not use its memory.
            unsafe {
                if let Pending::Receive { .. } = pending {
                    checked("MPI_Cancel", ffi::MPI_Cancel(request))?;
                }
                checked("MPI_Wait", ffi::MPI_Wait(request, ffi::RSMPI_STATUS_IGNORE))?;
            }
            match pending {
                Pending::Send { _bytes: bytes } => drop(ManuallyDrop::into_inner(bytes)),
                Pending::Receive { into, .. } => drop(ManuallyDrop::into_inner(into)),
            }
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
        self.add(request, Pending::Send { _bytes: bytes });
        Ok(())
    }

    fn receive(&mut self, from: usize, tag: Tag, into: Vec<u8>) -> Result<ReceiveId, TransportError> {
        self.ready("MPI_Irecv")?;
        check(from, self.size, tag)?;
        let length = counted(into.len())?;
        let mut into = ManuallyDrop::new(into);
        // SAFETY: `pending` keeps the memory, of `length` bytes, and nothing else uses it until the request has ended.
        let request = unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let (to, rank, tag) = (into.as_mut_ptr().cast(), from as c_int, c_int::from(tag));
            let code = ffi::MPI_Irecv(to, length, ffi::RSMPI_UINT8_T, rank, tag, self.comm, &mut request);
            checked("MPI_Irecv", code)?;
            request
        };
        let id = ReceiveId(self.next);
        self.next += 1;
        self.add(request, Pending::Receive { id, from, tag, into });
        Ok(id)
    }

    fn poll(&mut self, received: &mut Vec<Received>) -> Result<(), TransportError> {
        self.ready("MPI_Testsome")?;
        let before = received.len();
        let (count, failed) = self.test()?;
        // From the last index on, so that what is swapped into a free place is not one that has ended.
        let mut ended: Vec<(usize, usize)> = (0..count).map(|at| (self.indices[at] as usize, at)).collect();
        ended.sort_unstable_by(|a, b| b.cmp(a));
        for (index, at) in ended {
            // SAFETY: the library has written the first `count` statuses.
            let status = unsafe { self.statuses[at].assume_init() };
            self.requests.swap_remove(index);
            let pending = self.pending.swap_remove(index);
            received.extend(self.end(pending, &status, if failed { status.MPI_ERROR } else { SUCCESS }));
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
        self.unsent = 0;
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
    c_int::try_from(bytes).map_err(|_| TransportError::TooLong { bytes, limit: LONGEST })
}

/// Bytes of a message that was received.
fn count(status: &ffi::MPI_Status) -> Result<usize, TransportError> {
    let mut count = 0;
    // SAFETY: the status is one that the library wrote for a receive.
    let code = unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) };
    checked("MPI_Get_count", code)?;
    usize::try_from(count).map_err(|_| TransportError::Library {
        call: "MPI_Get_count",
        message: "the length of a message is unknown".to_owned(),
    })
}
