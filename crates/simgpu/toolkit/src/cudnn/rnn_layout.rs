//! Sizes and offsets of a recurrent network's memory: weight space, workspace and reserve space.
//!
//! The weight space has no padding: its size is the sum of all parameters, as PyTorch requires
//! (`get_parameters` in `aten/src/ATen/native/cudnn/RNN.cpp` checks each offset). All matrices come
//! first, then all biases, each by pseudo-layer (layer and direction) and linear layer (gate).
//!
//! NVIDIA does not document the sizes of workspace and reserve space. The formulas of
//! [`RnnShape::workspace_bytes`] and [`RnnShape::reserve_bytes`] were fitted to two networks on an
//! H200 with cuDNN 9.19 (tests below). No other shape was measured.

use std::ops::Range;

/// The cells of `cudnnRNNMode_t`, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CellMode {
    Relu,
    Tanh,
    Lstm,
    Gru,
}

impl CellMode {
    pub(super) fn from_code(code: u32) -> Option<Self> {
        [Self::Relu, Self::Tanh, Self::Lstm, Self::Gru].get(code as usize).copied()
    }

    /// Matrices that a cell applies to its input, and as many again to its state.
    fn gates(self) -> u64 {
        match self {
            Self::Relu | Self::Tanh => 1,
            Self::Lstm => 4,
            Self::Gru => 3,
        }
    }
}

/// Which of a gate's two matrices have a bias (`cudnnRNNBiasMode_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Biases {
    pub(super) input: bool,
    pub(super) state: bool,
}

impl Biases {
    pub(super) fn from_code(code: u32) -> Option<Self> {
        [(false, false), (true, false), (true, true), (false, true)]
            .get(code as usize)
            .map(|&(input, state)| Self { input, state })
    }
}

/// The contents of an RNN descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RnnShape {
    pub(super) mode: CellMode,
    pub(super) biases: Biases,
    pub(super) data_type: u32,
    /// Bytes of one element of `data_type`.
    pub(super) element: u64,
    /// 2 if bidirectional, else 1.
    pub(super) directions: u64,
    pub(super) layers: u64,
    pub(super) input: u64,
    pub(super) hidden: u64,
    /// Length of an output vector: less than `hidden` for an LSTM with projection.
    pub(super) output: u64,
}

/// A matrix or a bias: its place in the weight space, in bytes, and its two dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) bytes: Range<u64>,
    pub(super) rows: u64,
    pub(super) columns: u64,
}

impl RnnShape {
    fn pseudo_layers(&self) -> u64 {
        self.layers * self.directions
    }

    fn has_projection(&self) -> bool {
        self.mode == CellMode::Lstm && self.output != self.hidden
    }

    /// Linear layers of a pseudo-layer: matrices for input and state, and the projection.
    fn linear_layers(&self) -> u64 {
        2 * self.mode.gates() + u64::from(self.has_projection())
    }

    /// Rows and columns of a matrix.
    fn matrix(&self, pseudo_layer: u64, linear: u64) -> (u64, u64) {
        let gates = self.mode.gates();
        if linear >= 2 * gates {
            (self.output, self.hidden)
        } else if linear >= gates {
            (self.hidden, self.output)
        } else if pseudo_layer < self.directions {
            (self.hidden, self.input)
        } else {
            (self.hidden, self.output * self.directions)
        }
    }

    /// Elements of a bias, 0 if there is none.
    fn bias(&self, linear: u64) -> u64 {
        let gates = self.mode.gates();
        let present = (linear < gates && self.biases.input)
            || (linear >= gates && linear < 2 * gates && self.biases.state);
        if present { self.hidden } else { 0 }
    }

    /// Pairs of pseudo-layer and linear layer in the order of the weight space.
    fn order(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.pseudo_layers()).flat_map(move |layer| (0..self.linear_layers()).map(move |at| (layer, at)))
    }

    fn matrix_elements(&self, (pseudo_layer, linear): (u64, u64)) -> u64 {
        let (rows, columns) = self.matrix(pseudo_layer, linear);
        rows * columns
    }

    /// Returns whether the network has such a linear layer.
    pub(super) fn has(&self, pseudo_layer: u64, linear: u64) -> bool {
        pseudo_layer < self.pseudo_layers() && linear < self.linear_layers()
    }

    /// The matrix of a linear layer.
    pub(super) fn matrix_parameter(&self, pseudo_layer: u64, linear: u64) -> Parameter {
        let before = self.order().take_while(|&at| at != (pseudo_layer, linear));
        let start: u64 = before.map(|at| self.matrix_elements(at)).sum();
        let (rows, columns) = self.matrix(pseudo_layer, linear);
        self.parameter(start, rows, columns)
    }

    /// The bias of a linear layer; `None` if it has none.
    pub(super) fn bias_parameter(&self, pseudo_layer: u64, linear: u64) -> Option<Parameter> {
        let matrices: u64 = self.order().map(|at| self.matrix_elements(at)).sum();
        let before = self.order().take_while(|&at| at != (pseudo_layer, linear));
        let start = matrices + before.map(|(_, linear)| self.bias(linear)).sum::<u64>();
        let rows = self.bias(linear);
        (rows > 0).then(|| self.parameter(start, rows, 1))
    }

    fn parameter(&self, start: u64, rows: u64, columns: u64) -> Parameter {
        let range = start * self.element..(start + rows * columns) * self.element;
        Parameter { bytes: range, rows, columns }
    }

    pub(super) fn weight_bytes(&self) -> u64 {
        let elements = |at: (u64, u64)| self.matrix_elements(at) + self.bias(at.1);
        self.order().map(elements).sum::<u64>() * self.element
    }

    /// Values that the backward pass needs for each element of a layer's output. A GRU keeps both
    /// products of a gate, an LSTM their sum and the cell.
    fn kept_values(&self) -> u64 {
        match self.mode {
            CellMode::Relu | CellMode::Tanh => 1,
            CellMode::Lstm => 5,
            CellMode::Gru => 6,
        }
    }

    /// A copy of the matrices, and gradients of the gates of all layers. A GRU's last gate has two.
    pub(super) fn workspace_bytes(&self, vectors: u64) -> u64 {
        let matrices: u64 = self.order().map(|at| self.matrix_elements(at)).sum();
        let gates = self.mode.gates() + u64::from(self.mode == CellMode::Gru);
        (matrices + vectors * self.pseudo_layers() * gates * self.hidden) * self.element
    }

    /// What the backward pass needs of all layers, and the outputs between them.
    pub(super) fn reserve_bytes(&self, vectors: u64) -> u64 {
        let inside = self.pseudo_layers() * self.kept_values() * self.hidden;
        let between = (self.layers - 1) * self.directions * self.output;
        vectors * (inside + between) * self.element
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(mode: CellMode, layers: u64, directions: u64, output: u64) -> RnnShape {
        RnnShape {
            mode,
            biases: Biases { input: true, state: true },
            data_type: 0,
            element: 4,
            directions,
            layers,
            input: 10,
            hidden: 20,
            output,
        }
    }

    /// Elements of `torch.nn.LSTM` and others, by the shapes in PyTorch's documentation.
    fn elements_of_module(gates: u64, layers: u64, directions: u64, output: u64) -> u64 {
        (0..layers)
            .map(|layer| {
                let input = if layer == 0 { 10 } else { directions * output };
                let projection = if output == 20 { 0 } else { output * 20 };
                directions * (gates * 20 * (input + output + 2) + projection)
            })
            .sum()
    }

    #[test]
    fn weight_space_is_the_sum_of_parameters() {
        for (mode, gates) in
            [(CellMode::Relu, 1), (CellMode::Tanh, 1), (CellMode::Gru, 3), (CellMode::Lstm, 4)]
        {
            for (layers, directions) in [(1, 1), (1, 2), (2, 1), (3, 2)] {
                let expected = 4 * elements_of_module(gates, layers, directions, 20);
                assert_eq!(
                    shape(mode, layers, directions, 20).weight_bytes(),
                    expected,
                    "{mode:?} {layers} {directions}"
                );
            }
        }
        for (layers, directions) in [(1, 1), (2, 2)] {
            let expected = 4 * elements_of_module(4, layers, directions, 7);
            assert_eq!(shape(CellMode::Lstm, layers, directions, 7).weight_bytes(), expected);
        }
    }

    #[test]
    fn parameters_fill_the_weight_space_without_gaps() {
        for shape in [
            shape(CellMode::Lstm, 2, 2, 7),
            shape(CellMode::Gru, 3, 1, 20),
            RnnShape { biases: Biases { input: false, state: false }, ..shape(CellMode::Tanh, 2, 2, 20) },
            RnnShape { biases: Biases { input: true, state: false }, ..shape(CellMode::Relu, 2, 1, 20) },
        ] {
            let matrices = shape.order().map(|(layer, at)| shape.matrix_parameter(layer, at));
            let biases = shape.order().filter_map(|(layer, at)| shape.bias_parameter(layer, at));
            let mut end = 0;
            for parameter in matrices.chain(biases) {
                assert_eq!(parameter.bytes.start, end, "{shape:?}");
                assert_eq!(
                    parameter.bytes.end - parameter.bytes.start,
                    parameter.rows * parameter.columns * shape.element
                );
                end = parameter.bytes.end;
            }
            assert_eq!(end, shape.weight_bytes());
        }
    }

    #[test]
    fn matrices_have_the_shapes_of_pytorch_parameters() {
        let lstm = shape(CellMode::Lstm, 2, 2, 7);
        let dims = |layer, linear| {
            let parameter = lstm.matrix_parameter(layer, linear);
            (parameter.rows, parameter.columns)
        };
        assert_eq!((dims(1, 0), dims(1, 4), dims(1, 8)), ((20, 10), (20, 7), (7, 20)));
        assert_eq!((dims(2, 3), dims(3, 7), dims(3, 8)), ((20, 14), (20, 7), (7, 20)));
        assert_eq!(lstm.bias_parameter(0, 8), None, "the projection has no bias");
        assert!(lstm.has(3, 8) && !lstm.has(4, 0) && !lstm.has(0, 9));
        assert!(!shape(CellMode::Gru, 1, 1, 20).has(0, 6));
    }

    /// `tests/workloads/families/language/{lstm,gru}.py` on an H200 with cuDNN 9.19.
    #[test]
    fn temporary_memory_is_near_that_of_a_real_gpu() {
        let lstm = RnnShape { input: 1024, hidden: 1024, ..shape(CellMode::Lstm, 2, 1, 1024) };
        let gru = RnnShape { input: 512, hidden: 512, ..shape(CellMode::Gru, 3, 2, 512) };
        let measured = [
            (lstm.reserve_bytes(128 * 32), 185_073_920, 0.003),
            (lstm.workspace_bytes(128 * 32), 203_948_544, 0.014),
            (gru.reserve_bytes(100 * 16), 131_072_256, 0.000_01),
            (gru.workspace_bytes(100 * 16), 147_915_136, 0.13),
        ];
        for (ours, real, tolerance) in measured {
            let error = 1.0 - ours as f64 / f64::from(real);
            assert!((0.0..tolerance).contains(&error), "{ours} for {real}: {error}");
        }
    }

    #[test]
    fn unknown_codes_are_rejected() {
        assert_eq!(CellMode::from_code(2), Some(CellMode::Lstm));
        assert_eq!((CellMode::from_code(4), Biases::from_code(4)), (None, None));
        assert_eq!(Biases::from_code(3), Some(Biases { input: false, state: true }));
    }
}
