//! Families: graphs that use the same bytes for what they need only while they run.
//!
//! A program that captures one graph for each batch size needs the temporary memory of the largest, not of all of them, if only one
//! runs at a time. In [`GraphFamily::capture`] the scope gives such memory: [`FamilyScope::temporary`]. It is borrowed from the scope, so it
//! cannot be in the output, and nothing but the graph can reach it later. Everything else that is made in a capture (`zeros`, `upload`) has
//! bytes of its own, for as long as the graph or anybody's handle lives.
//!
//! Replays of a family write the shared bytes, and are ordered by that, on whatever streams they run.

use crate::{CudaGraph, GraphScope, OpError};
use core::fmt;
use core::ops::Deref;
use simtile_core::{Arena, DeviceBufferViewMut, Stream};
use simtile_sync::Mutex;
use simtile_types::DeviceCopy;
use std::sync::Arc;

/// Graphs that share the memory for their temporaries. See the module's documentation.
///
/// The shared memory lives as long as the family or one of its graphs.
pub struct GraphFamily {
    stream: Arc<Stream>,
    /// Absent while a capture has it.
    arena: Mutex<Option<Arena>>,
}

impl GraphFamily {
    /// A family without graphs, whose captures go on on this stream. Its memory grows to that of the largest graph, in place where the
    /// device has virtual memory management (in pieces of its granularity, 2 MiB); elsewhere capture the largest graph first.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(stream: &Arc<Stream>) -> Result<Self, OpError> {
        let arena = Arena::new(stream.context())?;
        Ok(Self { stream: stream.clone(), arena: Mutex::new(Some(arena)) })
    }

    /// As [`GraphFamily::new`], with so many bytes from the beginning. What does not fit into them gets more.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`](simtile_core::MemoryError::OutOfMemory), or the driver's.
    pub fn with_capacity(stream: &Arc<Stream>, bytes: usize) -> Result<Self, OpError> {
        let arena = Arena::with_capacity(stream, bytes)?;
        Ok(Self { stream: stream.clone(), arena: Mutex::new(Some(arena)) })
    }

    /// Bytes of the shared memory. `None` while a graph of it is being captured.
    pub fn num_bytes(&self) -> Option<usize> {
        self.arena.lock().as_ref().map(Arena::num_bytes)
    }

    /// The stream of its captures.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Records a graph of the family, as [`CudaGraph::scope`] does.
    ///
    /// ```
    /// use simtile_async::{DeviceOp, GraphFamily, copy, fill, zeros};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let simulator = simtile_sim::Simulator::builder().quiet().build();
    /// # let context = simtile_core::Context::new(simulator.driver(), 0)?;
    /// let stream = context.new_stream()?;
    /// let family = GraphFamily::new(&stream)?;
    /// let mut graphs = Vec::new();
    /// for size in [1000, 10, 500] {
    ///     graphs.push(family.capture(|scope| {
    ///         let mut scratch = scope.temporary::<f32>(size)?;
    ///         let output = scope.record(zeros::<f32>(size))?;
    ///         scope.record(fill(scratch.reborrow(), size as f32).then(|scratch| copy(scratch.into_view(), output)))
    ///     })?);
    /// }
    /// for graph in &graphs {
    ///     graph.launch().enqueue_on(&context.new_stream()?)?;
    /// }
    /// let outputs: Vec<_> = graphs.iter().filter_map(|graph| graph.take_output()).collect();
    /// assert_eq!(outputs[1].to_vec(&stream)?, [10.0; 10]);
    /// # Ok(()) }
    /// ```
    ///
    /// Temporaries do not outlive it:
    ///
    /// ```compile_fail
    /// # fn escape(family: &simtile_async::GraphFamily) {
    /// let graph = family.capture(|scope| scope.temporary::<f32>(8));
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpError::Graph`] while another graph of the family is being captured; else as [`CudaGraph::scope`].
    pub fn capture<T>(
        &self,
        run: impl FnOnce(&FamilyScope<'_>) -> Result<T, OpError>,
    ) -> Result<CudaGraph<T>, OpError> {
        let Some(mut arena) = self.arena.lock().take() else {
            return Err(OpError::Graph { what: "another graph of this family is being captured".into() });
        };
        arena.begin();
        // Given back on every exit.
        let mine = Borrowed { family: self, arena: Some(arena) };
        let Some(arena) = &mine.arena else { return Err(OpError::Finished) };
        CudaGraph::scope(&self.stream, |scope| run(&FamilyScope { scope, arena }))
    }
}

struct Borrowed<'a> {
    family: &'a GraphFamily,
    arena: Option<Arena>,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        *self.family.arena.lock() = self.arena.take();
    }
}

/// Where a graph of a family is recorded: a [`GraphScope`] that has shared memory.
#[derive(Debug)]
pub struct FamilyScope<'a> {
    scope: &'a GraphScope<'a>,
    arena: &'a Arena,
}

impl<'a> FamilyScope<'a> {
    /// `len` elements that this graph alone uses while it runs, and others of the family at other times. Each replay zeroes
    /// them (all bytes 0) before what is recorded next. Work outside of the graph may use them, too, and finds zeros or what graphs of the family
    /// left there.
    ///
    /// # Errors
    /// [`MemoryError::SizeOverflow`](simtile_core::MemoryError::SizeOverflow),
    /// [`MemoryError::OutOfMemory`](simtile_core::MemoryError::OutOfMemory), or the driver's.
    pub fn temporary<T: DeviceCopy>(&self, len: usize) -> Result<DeviceBufferViewMut<'a, T>, OpError> {
        let (capture, outside, stream) = self.scope.capture()?;
        // SAFETY: zeroed here for what is not recorded, and by the graph for what is, before the view can be used.
        let mut view = unsafe { self.arena.take::<T>(outside, len) }?;
        outside.submit().memset(view.reborrow(), 0)?;
        capture.submit(stream).memset(view.reborrow(), 0)?;
        Ok(view)
    }
}

impl<'a> Deref for FamilyScope<'a> {
    type Target = GraphScope<'a>;

    fn deref(&self) -> &GraphScope<'a> {
        self.scope
    }
}

impl fmt::Debug for GraphFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphFamily").field("stream", &self.stream).field("arena", &self.arena).finish()
    }
}
