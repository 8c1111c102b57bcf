//! cuDNN's recurrent networks (LSTM, GRU, RNN) in the interface of cuDNN 8 and 9.
//!
//! The descriptors and the weight layout are complete; forward and backward launch one kernel that
//! does nothing. Buffers that are too small fail with `CUDNN_STATUS_BAD_PARAM`.

use simgpu_common::{ApiResult, Out};

use super::descriptors::{DROPOUTS, Registry, SEQUENCES, Shape, TENSORS};
use super::rnn_layout::{Biases, CellMode, Parameter, RnnShape};
use super::{BAD_PARAM, EXECUTION_FAILED, stream_of};
use crate::driver::launch;
use crate::entry::toolkit;

/// The mode `CUDNN_FWD_MODE_TRAINING` needs reserve space.
const TRAINING: u32 = 1;

static NETWORKS: Registry<RnnShape> = Registry::new(0x5440_0000_0000);

/// Bytes of an element of a `cudnnDataType_t` that RNNs support: float, double, half, bfloat16.
fn element_bytes(data_type: u32) -> ApiResult<u64> {
    match data_type {
        0 => Ok(4),
        1 => Ok(8),
        2 | 9 => Ok(2),
        _ => Err(BAD_PARAM),
    }
}

/// Fails unless the size is positive.
fn size(value: i32) -> ApiResult<u64> {
    u64::try_from(value).ok().filter(|&value| value > 0).ok_or(BAD_PARAM)
}

/// Writes the descriptor and address of a parameter, null if it does not exist.
fn put_parameter(
    rnn: &RnnShape,
    parameter: Option<&Parameter>,
    space: u64,
    (descriptor, addr): (u64, Out<u64>),
) -> ApiResult {
    if let Some(parameter) = parameter.filter(|_| descriptor != 0) {
        let dims = [1, parameter.rows as i32, parameter.columns as i32];
        TENSORS.set(descriptor, Shape::packed(rnn.data_type, &dims))?;
    }
    addr.put_if_wanted(parameter.map_or(0, |parameter| space + parameter.bytes.start));
    Ok(())
}

/// Checks the buffers of a pass over `sequences` and launches its kernel.
fn run(
    handle: u64,
    rnn: u64,
    sequences: u64,
    (weights, workspace, reserve): (u64, u64, Option<u64>),
) -> ApiResult {
    let (rnn, vectors) = (NETWORKS.get(rnn)?, SEQUENCES.get(sequences)?.vectors);
    let fits = weights >= rnn.weight_bytes()
        && workspace >= rnn.workspace_bytes(vectors)
        && reserve.is_none_or(|bytes| bytes >= rnn.reserve_bytes(vectors));
    if !fits {
        return Err(BAD_PARAM);
    }
    launch(stream_of(handle)?).map_err(|_| EXECUTION_FAILED)
}

toolkit! { 4000;
    cudnnCreateRNNDescriptor(out: Out<u64>) { NETWORKS.create(out) }
    cudnnDestroyRNNDescriptor(id: u64) { NETWORKS.destroy(id) }
    cudnnSetRNNDescriptor_v8(
        id: u64, _algorithm: u32, mode: u32, biases: u32, direction: u32, _input_mode: u32, data_type: u32, _precision: u32,
        _math: u32, input: i32, hidden: i32, output: i32, layers: i32, dropout: u64, _flags: u32,
    ) {
        if dropout != 0 {
            DROPOUTS.get(dropout)?;
        }
        NETWORKS.set(id, RnnShape {
            mode: CellMode::from_code(mode).ok_or(BAD_PARAM)?,
            biases: Biases::from_code(biases).ok_or(BAD_PARAM)?,
            data_type,
            element: element_bytes(data_type)?,
            directions: if direction == 0 { 1 } else { 2 },
            layers: size(layers)?,
            input: size(input)?,
            hidden: size(hidden)?,
            output: size(output)?,
        })
    }
    cudnnGetRNNWeightSpaceSize(_handle: u64, rnn: u64, out: Out<u64>) { out.put(NETWORKS.get(rnn)?.weight_bytes()) }
    cudnnGetRNNWeightParams(
        _handle: u64, rnn: u64, pseudo_layer: i32, bytes: u64, space: u64, linear: i32, matrix: u64, matrix_addr: Out<u64>,
        bias: u64, bias_addr: Out<u64>,
    ) {
        let rnn = NETWORKS.get(rnn)?;
        let layer = u64::try_from(pseudo_layer).map_err(|_| BAD_PARAM)?;
        let linear = u64::try_from(linear).map_err(|_| BAD_PARAM)?;
        if bytes < rnn.weight_bytes() || !rnn.has(layer, linear) {
            return Err(BAD_PARAM);
        }
        put_parameter(&rnn, Some(&rnn.matrix_parameter(layer, linear)), space, (matrix, matrix_addr))?;
        put_parameter(&rnn, rnn.bias_parameter(layer, linear).as_ref(), space, (bias, bias_addr))
    }
    cudnnGetRNNTempSpaceSizes(
        _handle: u64, rnn: u64, mode: u32, sequences: u64, workspace: Out<u64>, reserve: Out<u64>,
    ) {
        let (rnn, vectors) = (NETWORKS.get(rnn)?, SEQUENCES.get(sequences)?.vectors);
        workspace.put_if_wanted(rnn.workspace_bytes(vectors));
        reserve.put_if_wanted(if mode == TRAINING { rnn.reserve_bytes(vectors) } else { 0 });
        Ok(())
    }
    cudnnRNNForward(
        handle: u64, rnn: u64, mode: u32, _lengths: u64, x_sequences: u64, _x: u64, _y_sequences: u64, _y: u64, _h: u64, _hx: u64,
        _hy: u64, _c: u64, _cx: u64, _cy: u64, weight_bytes: u64, _weights: u64, workspace_bytes: u64, _workspace: u64,
        reserve_bytes: u64, _reserve: u64,
    ) {
        let reserve = (mode == TRAINING).then_some(reserve_bytes);
        run(handle, rnn, x_sequences, (weight_bytes, workspace_bytes, reserve))
    }
    cudnnRNNBackwardData_v8(
        handle: u64, rnn: u64, _lengths: u64, _y_sequences: u64, _y: u64, _dy: u64, x_sequences: u64, _dx: u64, _h: u64, _hx: u64,
        _dhy: u64, _dhx: u64, _c: u64, _cx: u64, _dcy: u64, _dcx: u64, weight_bytes: u64, _weights: u64, workspace_bytes: u64,
        _workspace: u64, reserve_bytes: u64, _reserve: u64,
    ) {
        run(handle, rnn, x_sequences, (weight_bytes, workspace_bytes, Some(reserve_bytes)))
    }
    cudnnRNNBackwardWeights_v8(
        handle: u64, rnn: u64, _add: u32, _lengths: u64, x_sequences: u64, _x: u64, _h: u64, _hx: u64, _y_sequences: u64, _y: u64,
        weight_bytes: u64, _gradients: u64, workspace_bytes: u64, _workspace: u64, reserve_bytes: u64, _reserve: u64,
    ) {
        run(handle, rnn, x_sequences, (weight_bytes, workspace_bytes, Some(reserve_bytes)))
    }
}
