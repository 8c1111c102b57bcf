//! Process start and exit, per operating system.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
pub(crate) mod macos;
#[cfg(all(target_os = "linux", not(test)))]
mod prctl_hook;
#[cfg(target_os = "linux")]
mod python_startup;
