//! The documents of `whatif` and `fit`.

use gpumemtrace_whatif::WhatIfAnswer;
use serde::{Serialize, Serializer};

/// Predictions of `whatif`, for each trace.
pub(crate) struct WhatIfAnswers(pub(crate) Vec<WhatIfAnswer>);

impl Serialize for WhatIfAnswers {
    /// The answer itself if there is only one, else a list.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [answer] => answer.serialize(serializer),
            answers => answers.serialize(serializer),
        }
    }
}

/// The answer of `fit`: for each setting the smallest card, and the largest that is too small.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct SmallestCard(pub(crate) WhatIfAnswer);
