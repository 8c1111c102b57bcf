//! The address windows of all devices, of host memory and of managed memory, and their pools.

use std::collections::btree_map::Entry;

use super::device::{Device, DeviceBlock};
use super::location::{HOST_WINDOW, Location, MANAGED_WINDOW, OFF_DEVICE_BYTES, is_off_device};
use super::pages::Pages;
use super::pool::Pool;
use super::{DriverState, LocationPools};
use crate::result_code::{ApiResult, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY};

impl DriverState {
    /// Returns the window of a number together with the host's pages.
    pub(crate) fn window_and_pages(&mut self, window: u32) -> ApiResult<(&mut Device, &mut dyn Pages)> {
        if !is_off_device(window) {
            return self.device_and_pages(window);
        }
        if let Entry::Vacant(place) = self.off_device.entry(window) {
            let base = self.pages.reserve(OFF_DEVICE_BYTES).ok_or(OUT_OF_MEMORY)?;
            place.insert(Device::without_pools(u64::MAX >> 1, base, OFF_DEVICE_BYTES));
        }
        let window = self.off_device.get_mut(&window).ok_or(OUT_OF_MEMORY)?;
        Ok((window, self.pages.as_mut()))
    }

    /// Returns the window of a number.
    pub(crate) fn window(&mut self, window: u32) -> ApiResult<&mut Device> {
        Ok(self.window_and_pages(window)?.0)
    }

    /// All windows with their numbers.
    fn windows(&self) -> impl Iterator<Item = (u32, &Device)> {
        (0..).zip(&self.devices).chain(self.off_device.iter().map(|(&number, window)| (number, window)))
    }

    /// Returns the number of the window with an address.
    pub(crate) fn window_of(&self, addr: u64) -> Option<u32> {
        self.windows().find(|(_, window)| window.owns(addr)).map(|(number, _)| number)
    }

    /// Returns the live block that starts at an address.
    pub(crate) fn block(&self, addr: u64) -> Option<&DeviceBlock> {
        self.windows().find_map(|(_, window)| window.blocks.get(&addr))
    }

    /// Returns the live block of host or managed memory, of a pool or graph, that contains an
    /// address.
    pub(crate) fn off_device_block_at(&self, addr: u64) -> Option<(u64, &DeviceBlock)> {
        self.off_device.values().find_map(|window| window.block_at(addr))
    }

    /// Frees the block at an address, whatever its origin.
    pub(crate) fn free(&mut self, addr: u64) -> ApiResult<(u32, DeviceBlock)> {
        let number = self.window_of(addr).ok_or(INVALID_VALUE)?;
        let (window, pages) = self.window_and_pages(number)?;
        Ok((number, window.free(pages, addr)?))
    }

    /// Returns the window that owns a pool.
    pub(crate) fn pool_window(&self, pool: u64) -> ApiResult<u32> {
        let found = self.windows().find(|(_, window)| window.pools.contains_key(&pool));
        found.map(|(number, _)| number).ok_or(INVALID_HANDLE)
    }

    /// Returns the location of a pool that can allocate: it is neither destroyed nor imported.
    pub(crate) fn pool_location(&self, pool: u64) -> ApiResult<Location> {
        let pool = self.windows().find_map(|(_, window)| window.pools.get(&pool));
        let open = pool.filter(|pool| !pool.closed && !pool.imported);
        open.map(|pool| pool.location).ok_or(INVALID_HANDLE)
    }

    /// Returns the default and current pool of a location.
    pub(crate) fn pools_of(&mut self, location: Location) -> ApiResult<LocationPools> {
        if !is_off_device(location.window()) {
            let device = self.device(location.window())?;
            return Ok(LocationPools { default: device.default_pool, current: device.current_pool });
        }
        if let Some(pools) = self.off_device_pools.get(&location) {
            return Ok(*pools);
        }
        let handle = self.handle();
        self.window(location.window())?.pools.insert(handle, Pool::new(location));
        let pools = LocationPools { default: handle, current: handle };
        self.off_device_pools.insert(location, pools);
        Ok(pools)
    }

    /// Makes a pool the current one of its location.
    pub(crate) fn set_current_pool(&mut self, location: Location, pool: u64) -> ApiResult {
        let current = self.pools_of(location)?;
        if is_off_device(location.window()) {
            self.off_device_pools.insert(location, LocationPools { current: pool, ..current });
        } else {
            self.device(location.window())?.current_pool = pool;
        }
        Ok(())
    }

    /// Destroys a pool; its location's default pool takes its place as the current one.
    pub(crate) fn destroy_pool(&mut self, pool: u64) -> ApiResult {
        if self.off_device_pools.values().any(|pools| pools.default == pool) {
            return Err(INVALID_VALUE);
        }
        let (window, pages) = {
            let number = self.pool_window(pool)?;
            self.window_and_pages(number)?
        };
        window.destroy_pool(pages, pool)?;
        for pools in self.off_device_pools.values_mut().filter(|pools| pools.current == pool) {
            pools.current = pools.default;
        }
        Ok(())
    }

    /// Bytes of live host and managed memory, of every kind of call.
    pub(crate) fn off_device_bytes(&self) -> (u64, u64) {
        let pooled = |window| self.off_device.get(&window).map_or(0, |window| window.used - window.slack);
        let managed: u64 = self.devices.iter().map(|device| device.managed).sum();
        (self.host_bytes + pooled(HOST_WINDOW), managed + pooled(MANAGED_WINDOW))
    }

    /// Releases the memory that pools keep above their thresholds.
    pub(crate) fn settle_pools(&mut self) {
        for window in self.devices.iter_mut().chain(self.off_device.values_mut()) {
            window.release_pool_chunks(self.pages.as_mut(), |pool| pool.threshold);
        }
    }
}
