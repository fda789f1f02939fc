//! What a simulated driver has to say beyond return codes.

use crate::exec::{Finding, FindingKind, KernelFault, Site};
use std::fmt;

/// Kinds of [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportKind {
    /// A kernel ended early; its context is lost.
    KernelFault,
    /// A copy, memset or value operation touched memory that it may not; its context is lost.
    MemoryFault,
    /// A kernel read bytes that nothing wrote.
    UninitialisedRead,
    /// A Tile kernel's assumption does not hold.
    FalseAssume,
    /// Threads of a block wait at different barriers.
    BarrierDivergence,
    /// Two pieces of work touch the same bytes and nothing orders them.
    Race,
    /// A kernel touched bytes that its launch did not declare.
    Undeclared,
    /// The host changed memory that a pending copy reads or fills.
    HostWrite,
    /// Managed memory was touched by one side while the other has it to itself.
    ManagedAccess,
    /// A graph's node followed a pointer whose memory has been freed since the node was made.
    StaleGraphPointer,
    /// Nobody can go on, or a participant of an exploration waits for something that the schedule does not see.
    Deadlock,
    /// A thread that takes no part in an exploration called a driver that does.
    Outsider,
    /// A call asked for something that the simulator does not do.
    Unsupported,
    /// An image was refused.
    Image,
    /// The simulator itself failed: a defect to be reported.
    Internal,
}

/// Something that went wrong, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What kind of thing.
    pub kind: ReportKind,
    /// The kernel's name, if one ran.
    pub kernel: Option<String>,
    /// Where in the kernel.
    pub site: Option<Site>,
    /// What happened.
    pub text: String,
    /// Label of the stream, or its number.
    pub stream: Option<String>,
    /// Labels of the buffers involved.
    pub labels: Vec<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// The seed of the simulator.
    pub seed: u64,
    /// The setting under which the same program does the same again.
    pub replay: String,
    /// The address that could not be accessed.
    pub(crate) address: Option<u64>,
}

impl Report {
    pub(crate) fn new(kind: ReportKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            kernel: None,
            site: None,
            text: text.into(),
            stream: None,
            labels: Vec::new(),
            hint: None,
            seed: 0,
            replay: String::new(),
            address: None,
        }
    }

    pub(crate) fn on_stream(mut self, stream: Option<String>) -> Self {
        self.stream = stream;
        self
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn fault(fault: &KernelFault) -> Self {
        let mut report = Self::new(ReportKind::KernelFault, fault.to_string());
        report.kernel = Some(fault.site.kernel.clone());
        report.site = Some((*fault.site).clone());
        if let crate::exec::FaultReason::Memory(memory) = &fault.reason {
            report.labels.extend(memory.near.iter().filter_map(|near| near.label.clone()));
            report.address = Some(memory.address);
        }
        report
    }

    pub(crate) fn race(race: &crate::check::Race) -> Self {
        let mut report = Self::new(ReportKind::Race, race.to_string());
        report.labels.extend(race.label.clone());
        report
    }

    pub(crate) fn undeclared(
        kernel: &str,
        allocation: &crate::memory::Allocation,
        found: &crate::check::Undeclared,
        place: Option<&str>,
    ) -> Self {
        use crate::check::Touch;
        use simtile_driver::AccessMode;
        let touch = match found.touch {
            Touch::Read => "reads",
            Touch::Write => "writes",
            Touch::Atomic => "atomically updates",
        };
        let said = match found.declared {
            None => "not at all",
            Some(AccessMode::Read) => "as read",
            Some(AccessMode::Write) => "as written",
            Some(AccessMode::Accumulate) => "as accumulated",
        };
        let label = allocation.label();
        let buffer = match &label {
            Some(label) => format!("'{label}'"),
            None => format!("the buffer of {} bytes at {:#x}", allocation.bytes, allocation.base),
        };
        let at = place.map_or_else(String::new, |place| format!("; it does so at {place}"));
        let text = format!(
            "kernel {kernel} {touch} byte {} of {buffer}, which its launch declared {said}{at}",
            found.offset
        );
        let mut report = Self::new(ReportKind::Undeclared, text);
        report.kernel = Some(kernel.to_owned());
        report.labels.extend(label.map(|label| label.to_string()));
        report
    }

    pub(crate) fn finding(finding: Finding) -> Self {
        let (kind, text, label) = match finding.kind {
            FindingKind::UninitialisedRead { address, bytes, space, label } => (
                ReportKind::UninitialisedRead,
                format!("read of {bytes} bytes of {space} memory at {address:#x} that nothing wrote"),
                label,
            ),
            FindingKind::FalseAssume { predicate, value } => (
                ReportKind::FalseAssume,
                format!("the assumption '{predicate}' does not hold for {value}; a GPU may do anything"),
                None,
            ),
            FindingKind::BarrierDivergence { detail } => {
                (ReportKind::BarrierDivergence, format!("barrier divergence: {detail}"), None)
            }
        };
        let mut report = Self::new(kind, format!("{text} in {}", finding.site));
        report.kernel = Some(finding.site.kernel.clone());
        report.site = Some(finding.site);
        report.labels.extend(label);
        report
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)?;
        if let Some(stream) = &self.stream {
            write!(f, ", on stream {stream}")?;
        }
        // Most texts name the buffers themselves.
        for label in self.labels.iter().filter(|label| !self.text.contains(&format!("'{label}'"))) {
            write!(f, ", buffer '{label}'")?;
        }
        write!(f, " (seed {})", self.seed)?;
        if !self.replay.is_empty() {
            write!(f, "\n  replay: {}", self.replay)?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}
