//! cuFFT plans (plain numbers) and cuRAND generators.

use std::sync::atomic::{AtomicU32, Ordering};

use simgpu_common::Out;

use crate::entry::toolkit;
use crate::versions::wheel_versions;

static NEXT_PLAN: AtomicU32 = AtomicU32::new(1);

fn plan(out: Out<u32>) -> Result<(), u32> {
    out.put(NEXT_PLAN.fetch_add(1, Ordering::Relaxed))
}

toolkit! { 5;
    cufftCreate(out: Out<u32>) { plan(out) }
    cufftPlan1d(out: Out<u32>, _nx: i32, _kind: u32, _batch: i32) { plan(out) }
    cufftPlan2d(out: Out<u32>, _nx: i32, _ny: i32, _kind: u32) { plan(out) }
    cufftPlan3d(out: Out<u32>, _nx: i32, _ny: i32, _nz: i32, _kind: u32) { plan(out) }
    cufftXtMakePlanMany(
        _plan: u32, _rank: i32, _n: u64, _inembed: u64, _istride: i64, _idist: i64, _itype: u32, _onembed: u64, _ostride: i64,
        _odist: i64, _otype: u32, _batch: i64, work: Out<u64>, _etype: u32,
    ) {
        work.put_if_wanted(0);
        Ok(())
    }
    cufftMakePlanMany(
        _plan: u32, _rank: i32, _n: u64, _inembed: u64, _istride: i32, _idist: i32, _onembed: u64, _ostride: i32, _odist: i32,
        _kind: u32, _batch: i32, work: Out<u64>,
    ) {
        work.put_if_wanted(0);
        Ok(())
    }
    cufftGetSize(_plan: u32, work: Out<u64>) { work.put(0) }
    cufftGetVersion(out: Out<u32>) { out.put(wheel_versions().cufft) }
    curandGetVersion(out: Out<u32>) { out.put(wheel_versions().runtime / 10 * 100) }
}
