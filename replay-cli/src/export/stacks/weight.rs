//! What a stack is weighted by in a file of one value: `--weight`.

use clap::ValueEnum;

/// What is shown of each stack. Formats with several values show all, this one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StackWeight {
    /// Live at the peak of each device
    #[default]
    Peak,
    /// Live at the end of the program, or of the window
    End,
    /// Allocated in the whole run, or in the window
    Allocated,
    /// Leaked, as far as the report finds it, in the whole run
    Leaked,
}

impl StackWeight {
    /// The values in the order of their formats.
    pub(crate) const ALL: [Self; 4] = [Self::Peak, Self::End, Self::Allocated, Self::Leaked];

    /// This value and then the others.
    pub(crate) fn and_others(self) -> impl Iterator<Item = Self> {
        std::iter::once(self).chain(Self::ALL.into_iter().filter(move |other| *other != self))
    }

    /// As a title of a view says it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Peak => "live at the peak",
            Self::End => "live at the end",
            Self::Allocated => "allocated",
            Self::Leaked => "leaked",
        }
    }
}
