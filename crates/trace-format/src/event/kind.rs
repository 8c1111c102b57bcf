//! What an event can be.
//!
//! An event kind is one row of the table in `kind_table.rs`. The row generates the constant with
//! its doc, its name, its place in [`EventKind::NAMED`], whether its `seq` is taken before the
//! call, and its row in `docs/trace-format.md` (checked by `tests/specification.rs`, which prints
//! the right table). A number never changes its meaning; a reader skips and counts a kind that it
//! does not know.

/// A kind of event. A plain number, because a reader must carry kinds that are newer than it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKind(pub u8);

/// A row of the table of event kinds, as `docs/trace-format.md` prints it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct EventKindRow {
    pub kind: EventKind,
    pub name: &'static str,
    pub is_before_call: bool,
    pub meaning: &'static str,
    pub addr: &'static str,
    pub size: &'static str,
    pub aux0: &'static str,
    pub aux1: &'static str,
}

/// Expands to the constants and predicates of [`EventKind`]. Each group has a range of numbers; a
/// row outside the range of its group does not compile.
///
/// ```text
/// GROUP first..=last {
///     number CONSTANT "name" [before_call] "what happened" [addr ".."] [size ".."] [aux0 ".."] [aux1 ".."];
/// }
/// ```
/// A field that a row leaves out is 0. `before_call` marks calls that give memory back: see
/// [`EventKind::is_ordered_before_call`].
macro_rules! event_kinds {
    ($(
        $group:ident $range:expr => {
            $($number:literal $constant:ident $name:literal $($order:ident)? $meaning:literal
                $(addr $addr:literal)? $(size $size:literal)? $(aux0 $aux0:literal)? $(aux1 $aux1:literal)?;)*
        }
    )*) => {
        $(pub(super) const $group: std::ops::RangeInclusive<u8> = $range;)*

        $($(const _: () = assert!(
            *$group.start() <= $number && $number <= *$group.end(),
            concat!(stringify!($constant), " is outside the range of its group"),
        );)*)*

        impl EventKind {
            $($(
                #[doc = $meaning]
                $(#[doc = concat!("\n* `addr`: ", $addr)])?
                $(#[doc = concat!("\n* `size`: ", $size)])?
                $(#[doc = concat!("\n* `aux0`: ", $aux0)])?
                $(#[doc = concat!("\n* `aux1`: ", $aux1)])?
                pub const $constant: Self = Self($number);
            )*)*

            /// All kinds that a trace can hold, with the names that `dump` and reports use.
            pub const NAMED: &[(Self, &str)] = &[$($((Self::$constant, $name),)*)*];

            /// Bit `n` is set where the `seq` of kind `n` is taken before the call.
            pub(super) const BEFORE_CALL: u64 = 0 $($($(| event_kinds!(@bit $order $number))?)*)*;

            #[doc(hidden)]
            pub const TABLE: &[EventKindRow] = &[$($(EventKindRow {
                kind: Self::$constant,
                name: $name,
                is_before_call: $number < 64 && Self::BEFORE_CALL >> ($number % 64) & 1 == 1,
                meaning: $meaning,
                addr: event_kinds!(@field $($addr)?),
                size: event_kinds!(@field $($size)?),
                aux0: event_kinds!(@field $($aux0)?),
                aux1: event_kinds!(@field $($aux1)?),
            },)*)*];
        }
    };
    // Only driver calls (1 to 63) may be `before_call`: a larger number overflows the shift.
    (@bit before_call $number:literal) => { 1u64 << $number };
    (@field) => { "0" };
    (@field $text:literal) => { $text };
}
pub(super) use event_kinds;

impl EventKind {
    /// No event: a call that turned out to move no memory. Never stored.
    pub const NONE: Self = Self(0);

    /// In a ring only: head of a code definition. See [`crate::ring`].
    pub(crate) const CODE_DEF: Self = Self(200);
    /// In a ring only: 56 payload bytes of the code definition before it.
    pub const CODE_DATA: Self = Self(201);
    /// In a ring only: a Python node of the stack tree.
    pub(crate) const PY_NODE_DEF: Self = Self(202);
    /// In a ring only: a native node of the stack tree.
    pub(crate) const NATIVE_NODE_DEF: Self = Self(203);
    /// In a ring only: the [`super::Detail`] of the event in the next record.
    pub(crate) const DETAIL: Self = Self(204);

    /// The kind's name; `None` for a kind that this version does not know.
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|(kind, _)| *kind == self).map(|(_, name)| *name)
    }

    /// True for records that exist only in a ring.
    pub(crate) fn is_ring_only(self) -> bool {
        (Self::CODE_DEF.0..=Self::DETAIL.0).contains(&self.0)
    }

    /// True for calls that give memory back: their `seq` is taken before the call, that of every
    /// other event after it. So an address is freed before it is handed out again, whatever the
    /// threads do. A graph launch does both; its `seq` is taken after, as only the graph itself
    /// reuses what it frees.
    pub fn is_ordered_before_call(self) -> bool {
        self.0 < 64 && Self::BEFORE_CALL >> self.0 & 1 == 1
    }
}

impl std::fmt::Debug for EventKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "kind_{}", self.0),
        }
    }
}
