//! How a simulated driver is set up: builder values and the text of `SIMTILE_SIM`.

use crate::explore::Recording;
use crate::lacks::{Lacks, NEWEST_DRIVER, OLDEST_DRIVER};
use crate::profile::Profile;
use std::fmt;
use std::str::FromStr;

/// How submitted work is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// Worker threads; different streams run at the same time.
    #[default]
    Fast,
    /// One piece of work at a time, ready work in the order of its submission.
    Fifo,
    /// Ready work in an order that the seed decides. Under [`crate::explore::explore`] host threads and
    /// time belong to the seed too, and one seed gives one trace.
    Explore,
}

/// Which checks run besides bounds and lifetime, which always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Reports reads of bytes that nothing wrote.
    pub uninitialised: bool,
    /// Reports conflicting accesses that the program did not order.
    pub races: bool,
}

impl Checks {
    /// Every check.
    pub const ALL: Self = Self { uninitialised: true, races: true };
    /// None but bounds and lifetime.
    pub const NONE: Self = Self { uninitialised: false, races: false };
}

impl Default for Checks {
    /// Uninitialised reads; races cost time and memory, so they are asked for.
    fn default() -> Self {
        Self { uninitialised: true, races: false }
    }
}

/// Settings of a simulated driver.
///
/// As text: `devices=2,mode=fifo,seed=7,check=all,profile=h200,without=pools+vmm,driver=12.4,memory=4GiB,steps=1000000,workers=2`.
/// Keys that are left out keep their defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SimConfig {
    /// How many devices (0 to [`SimConfig::MOST_DEVICES`]). Default 1.
    pub devices: u32,
    /// Scheduling. Default [`Mode::Fast`].
    pub mode: Mode,
    /// Chooses the order of warps and blocks, and of work in [`Mode::Explore`]. Default 0.
    pub seed: u64,
    /// Checks. Default uninitialised reads.
    pub checks: Checks,
    /// What the devices look like. Default [`Profile::H200`].
    pub profile: Profile,
    /// What the devices lack of what their profile has. Default nothing.
    pub lacks: Lacks,
    /// The version the driver says it has, as 1000 times the major and 10 times the minor number, from 12000 to 13000
    /// (the default). Entries, attributes and PTX that came later are not there.
    pub driver_version: i32,
    /// Memory of each device in bytes ([`SimConfig::LEAST_MEMORY`] to [`SimConfig::MOST_MEMORY`]), committed lazily. Default 4 GiB.
    /// As on the real driver, pools take theirs in pieces of 32 MiB; on a device that has less, in a sixteenth of it.
    pub memory: u64,
    /// Whether addresses of freed memory are handed out again, as on a GPU. Default true.
    pub reuse_addresses: bool,
    /// Whether frees without a stream wait for the whole context, as the real driver does. Default true.
    pub frees_wait: bool,
    /// Whether asynchronous copies touch pageable memory after they have returned, as CUDA allows. Default
    /// false: small uploads are staged, the rest is waited for, as the real driver does.
    pub pageable_async: bool,
    /// Whether host and devices may use managed memory at the same time (`CONCURRENT_MANAGED_ACCESS`). Default true. Without
    /// it the host may touch managed memory only while no kernel is under way that could, and prefetching and advice that
    /// name such a device are refused.
    pub concurrent_managed: bool,
    /// How long, in seconds, nothing at all may happen while a host thread waits, before that counts as a deadlock
    /// though somebody outside could still end it: a value in host memory, a closed gate, a host function that does not come
    /// back, a thread that makes no calls. 0: for ever, as on a real driver. Default 30.
    pub patience: u32,
    /// Most steps of one thread (SIMT) or block (Tile) before a kernel counts as endless. Default 2^30.
    pub step_limit: u64,
    /// Host threads that one kernel may use, at most [`SimConfig::MOST_WORKERS`]. 0 (default): one a core (at most 8) in [`Mode::Fast`],
    /// else one.
    pub workers: usize,
    /// Whether each report is also printed to stderr. Default true.
    pub print_reports: bool,
    /// Decisions to repeat instead of those of the seed, in [`Mode::Explore`] outside of
    /// [`crate::explore::explore`] (inside, the exploration decides). Default none. As text a schedule such as
    /// `7:late:12.1+40.0`, or the path of a file that holds one or a whole trace.
    pub replay: Option<Recording>,
}

/// What the numbers may be, in words.
const DEVICES: &str = "a number from 0 to 64";
const MEMORY: &str = "a size such as 512MiB, 4GiB or a number of bytes, from 1MiB to 4TiB";
const WORKERS: &str = "a number from 0 to 256";
const STEPS: &str = "a number from 1 to 2^64-1";
const VERSION: &str = "a version from 12.0 to 13.0";
const REPLAY: &str = "a schedule such as 7:late:12.1+40.0, or a file that holds one";
const REPLAYED: &str = "a schedule together with mode=explore";

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            devices: 1,
            mode: Mode::Fast,
            seed: 0,
            checks: Checks::default(),
            profile: Profile::H200,
            lacks: Lacks::NOTHING,
            driver_version: NEWEST_DRIVER,
            memory: 4 << 30,
            reuse_addresses: true,
            frees_wait: true,
            pageable_async: false,
            concurrent_managed: true,
            patience: 30,
            step_limit: 1 << 30,
            workers: 0,
            print_reports: true,
            replay: None,
        }
    }
}

/// A setting that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The key.
    pub key: String,
    /// The value, empty if there was none.
    pub value: String,
    /// What would be allowed.
    pub allowed: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, allowed } = self;
        if *allowed == KEYS {
            return write!(f, "simulator setting {key}={value}: there is no '{key}'; there are {allowed}");
        }
        write!(f, "simulator setting {key}={value}: allowed is {allowed}")
    }
}

impl std::error::Error for ConfigError {}

const KEYS: &str = "devices, mode, seed, check, profile, without, driver, memory, addresses, frees, pageable, managed, patience, steps, workers, reports, replay";

impl SimConfig {
    /// Most devices.
    pub const MOST_DEVICES: u32 = 64;
    /// Least memory of a device in bytes.
    pub const LEAST_MEMORY: u64 = 1 << 20;
    /// Most memory of a device in bytes.
    pub const MOST_MEMORY: u64 = 4 << 40;
    /// Most host threads of a kernel.
    pub const MOST_WORKERS: usize = 256;

    /// Whether every setting is inside its documented limits. Text is checked when it is read; [`Simulator::new`](crate::Simulator::new)
    /// takes the nearest setting that is allowed.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is not, its value and what is allowed.
    pub fn check(&self) -> Result<(), ConfigError> {
        let near = self.clone().clamped();
        let refuse =
            |key: &str, value: String, allowed| Err(ConfigError { key: key.to_owned(), value, allowed });
        if self.devices != near.devices {
            return refuse("devices", self.devices.to_string(), DEVICES);
        }
        if self.memory != near.memory {
            return refuse("memory", self.memory.to_string(), MEMORY);
        }
        if self.workers != near.workers {
            return refuse("workers", self.workers.to_string(), WORKERS);
        }
        if self.step_limit != near.step_limit {
            return refuse("steps", self.step_limit.to_string(), STEPS);
        }
        if self.driver_version != near.driver_version {
            return refuse("driver", self.version_text(), VERSION);
        }
        match &self.replay {
            Some(replay) if self.mode != Mode::Explore => refuse("replay", replay.to_string(), REPLAYED),
            _ => Ok(()),
        }
    }

    fn version_text(&self) -> String {
        format!("{}.{}", self.driver_version / 1000, self.driver_version % 1000 / 10)
    }

    /// Settings from an environment variable; the defaults if it is not set.
    ///
    /// # Errors
    /// [`ConfigError`] with key, value and what is allowed.
    pub fn from_env(variable: &str) -> Result<Self, ConfigError> {
        match std::env::var(variable) {
            Ok(text) => text.parse(),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(text)) => Err(ConfigError {
                key: variable.to_owned(),
                value: text.to_string_lossy().into_owned(),
                allowed: "UTF-8 text",
            }),
        }
    }

    /// What the devices lack: what was taken away, and what their compute capability does not have.
    pub(crate) fn lacking(&self) -> Lacks {
        Lacks { clusters: self.lacks.clusters || !self.profile.has_clusters(), ..self.lacks }
    }

    /// The same with every number inside its documented limits, which text is checked against too.
    pub(crate) fn clamped(mut self) -> Self {
        self.devices = self.devices.min(Self::MOST_DEVICES);
        self.memory = self.memory.clamp(Self::LEAST_MEMORY, Self::MOST_MEMORY);
        self.workers = self.workers.min(Self::MOST_WORKERS);
        self.step_limit = self.step_limit.max(1);
        self.driver_version = self.driver_version.clamp(OLDEST_DRIVER, NEWEST_DRIVER);
        self
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "devices" => {
                self.devices = value.parse().ok().filter(|&n| n <= Self::MOST_DEVICES).ok_or(DEVICES)?;
            }
            "mode" => {
                self.mode = match value {
                    "fast" => Mode::Fast,
                    "fifo" => Mode::Fifo,
                    "explore" => Mode::Explore,
                    _ => return Err("fast, fifo, explore"),
                }
            }
            "seed" => self.seed = value.parse().map_err(|_| "a number from 0 to 2^64-1")?,
            "check" => {
                self.checks = match value {
                    "all" => Checks::ALL,
                    "none" => Checks::NONE,
                    "uninit" => Checks { uninitialised: true, races: false },
                    "race" => Checks { uninitialised: false, races: true },
                    _ => return Err("all, none, uninit, race"),
                }
            }
            "profile" => self.profile = Profile::by_name(value).ok_or(Profile::NAMES)?,
            "without" => self.lacks = Lacks::by_names(value).ok_or(Lacks::NAMES)?,
            "driver" => self.driver_version = version(value).ok_or(VERSION)?,
            "memory" => {
                let limits = Self::LEAST_MEMORY..=Self::MOST_MEMORY;
                self.memory = size(value).filter(|n| limits.contains(n)).ok_or(MEMORY)?;
            }
            "addresses" => {
                self.reuse_addresses = match value {
                    "reuse" => true,
                    "fresh" => false,
                    _ => return Err("reuse, fresh"),
                }
            }
            "frees" => {
                self.frees_wait = match value {
                    "wait" => true,
                    "never" => false,
                    _ => return Err("wait, never"),
                }
            }
            "pageable" => {
                self.pageable_async = match value {
                    "staged" => false,
                    "async" => true,
                    _ => return Err("staged, async"),
                }
            }
            "managed" => {
                self.concurrent_managed = match value {
                    "concurrent" => true,
                    "exclusive" => false,
                    _ => return Err("concurrent, exclusive"),
                }
            }
            "patience" => {
                self.patience = value.parse().map_err(|_| "a number of seconds from 0 to 2^32-1")?
            }
            "steps" => {
                self.step_limit = value.parse().ok().filter(|&n| n > 0).ok_or(STEPS)?;
            }
            "workers" => {
                self.workers = value.parse().ok().filter(|&n| n <= Self::MOST_WORKERS).ok_or(WORKERS)?;
            }
            "reports" => {
                self.print_reports = match value {
                    "print" => true,
                    "quiet" => false,
                    _ => return Err("print, quiet"),
                }
            }
            "replay" => {
                let read = || std::fs::read_to_string(value).ok()?.parse().ok();
                self.replay = Some(value.parse().ok().or_else(read).ok_or(REPLAY)?);
            }
            _ => return Err(KEYS),
        }
        Ok(())
    }
}

fn version(text: &str) -> Option<i32> {
    let (major, minor) = text.split_once('.').unwrap_or((text, "0"));
    let (major, minor): (i32, i32) = (major.parse().ok()?, minor.parse().ok()?);
    let version = major.checked_mul(1000)?.checked_add(minor.checked_mul(10)?)?;
    ((0..100).contains(&minor) && (OLDEST_DRIVER..=NEWEST_DRIVER).contains(&version)).then_some(version)
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match text[digits.len()..].trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

impl fmt::Display for SimConfig {
    /// The text that gives these settings: what differs from the defaults, and the mode.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = Self::default();
        let mode = match self.mode {
            Mode::Fast => "fast",
            Mode::Fifo => "fifo",
            Mode::Explore => "explore",
        };
        let check = match (self.checks.uninitialised, self.checks.races) {
            (true, true) => "all",
            (true, false) => "uninit",
            (false, true) => "race",
            (false, false) => "none",
        };
        write!(f, "mode={mode},seed={},check={check}", self.seed)?;
        if self.devices != other.devices {
            write!(f, ",devices={}", self.devices)?;
        }
        if self.profile != other.profile {
            write!(f, ",profile={}", self.profile.name())?;
        }
        if self.lacks != other.lacks {
            write!(f, ",without={}", self.lacks.names())?;
        }
        if self.driver_version != other.driver_version {
            write!(f, ",driver={}", self.version_text())?;
        }
        if self.memory != other.memory {
            write!(f, ",memory={}", self.memory)?;
        }
        let switches = [
            (self.reuse_addresses, other.reuse_addresses, ",addresses=fresh"),
            (self.frees_wait, other.frees_wait, ",frees=never"),
            (self.pageable_async, other.pageable_async, ",pageable=async"),
            (self.concurrent_managed, other.concurrent_managed, ",managed=exclusive"),
            (self.print_reports, other.print_reports, ",reports=quiet"),
        ];
        for (_, _, text) in switches.into_iter().filter(|(mine, default, _)| mine != default) {
            f.write_str(text)?;
        }
        if self.patience != other.patience {
            write!(f, ",patience={}", self.patience)?;
        }
        if self.step_limit != other.step_limit {
            write!(f, ",steps={}", self.step_limit)?;
        }
        if self.workers != other.workers {
            write!(f, ",workers={}", self.workers)?;
        }
        if let Some(replay) = &self.replay {
            write!(f, ",replay={replay}")?;
        }
        Ok(())
    }
}

impl FromStr for SimConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut mode = None;
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            config.set(key, value).map_err(|allowed| ConfigError {
                key: key.to_owned(),
                value: value.to_owned(),
                allowed,
            })?;
            mode = mode.or((key == "mode").then_some(()));
        }
        if config.replay.is_some() && mode.is_none() {
            // A schedule says how to explore.
            config.mode = Mode::Explore;
        }
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_sets_every_key() {
        let config: SimConfig =
            "devices=2, mode=fifo,seed=7,check=none,profile=a100,without=pools+vmm,driver=12.4,memory=512MiB,addresses=fresh,frees=never,pageable=async,managed=exclusive,patience=5,steps=9,workers=3,reports=quiet"
                .parse()
                .unwrap();
        let expected = SimConfig {
            devices: 2,
            mode: Mode::Fifo,
            seed: 7,
            checks: Checks::NONE,
            profile: Profile::A100,
            lacks: Lacks { pools: true, vmm: true, ..Lacks::NOTHING },
            driver_version: 12040,
            memory: 512 << 20,
            reuse_addresses: false,
            frees_wait: false,
            pageable_async: true,
            concurrent_managed: false,
            patience: 5,
            step_limit: 9,
            workers: 3,
            print_reports: false,
            replay: None,
        };
        assert_eq!(config, expected);
        assert_eq!(config.to_string().parse(), Ok(expected));
        let replay = Some("7:late:3.1".parse().unwrap());
        let replayed = SimConfig { mode: Mode::Explore, replay, ..SimConfig::default() };
        assert_eq!("replay=7:late:3.1".parse(), Ok(replayed.clone()));
        assert_eq!(replayed.to_string().parse(), Ok(replayed));
        assert_eq!(SimConfig::default().to_string().parse(), Ok(SimConfig::default()));
        assert_eq!("".parse::<SimConfig>().unwrap(), SimConfig::default());
    }

    #[test]
    fn numbers_count_as_the_nearest_one_allowed() {
        let (devices, memory, workers) = (u32::MAX, u64::MAX, usize::MAX);
        let config = SimConfig { devices, memory, workers, ..SimConfig::default() };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "simulator setting devices=4294967295: allowed is a number from 0 to 64"
        );
        let config = config.clamped();
        assert_eq!((config.devices, config.memory, config.workers), (64, 4 << 40, 256));
        assert_eq!(config.check(), Ok(()));
        let little = SimConfig { memory: 1, ..SimConfig::default() };
        assert_eq!(little.check().unwrap_err().key, "memory");
        assert_eq!(little.clamped().memory, 1 << 20);
        assert_eq!(SimConfig::default().clamped(), SimConfig::default());
    }

    #[test]
    fn bad_text_names_key_value_and_what_is_allowed() {
        for (text, key, value, allowed) in [
            ("devices=many", "devices", "many", "0 to 64"),
            ("mode=quick", "mode", "quick", "fast, fifo, explore"),
            ("memory=4parsecs", "memory", "4parsecs", "4GiB"),
            ("colour=red", "colour", "red", "profile"),
            ("seed", "seed", "", "number"),
            ("without=legs", "without", "legs", "clusters"),
            ("driver=11.8", "driver", "11.8", "12.0 to 13.0"),
            ("profile=b9000", "profile", "b9000", "rtx4090"),
            ("managed=shared", "managed", "shared", "exclusive"),
            ("patience=long", "patience", "long", "seconds"),
            ("memory=99999999999999TiB", "memory", "99999999999999TiB", "4TiB"),
            ("memory=1023KiB", "memory", "1023KiB", "1MiB"),
            ("mode=fifo,replay=7:late:3.1", "replay", "7:late:3.1", "mode=explore"),
            ("replay=7:late:3.1,mode=fast", "replay", "7:late:3.1", "mode=explore"),
        ] {
            let error = text.parse::<SimConfig>().unwrap_err();
            assert_eq!((error.key.as_str(), error.value.as_str()), (key, value));
            assert!(error.allowed.contains(allowed), "{error}");
            let named = format!("simulator setting {key}={value}: ");
            assert!(error.to_string().starts_with(&named), "{error}");
        }
    }
}
