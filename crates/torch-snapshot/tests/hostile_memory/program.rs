//! Pickles, opcode by opcode.

/// Opcodes of protocol 2.
pub(crate) struct Program {
    bytes: Vec<u8>,
}

impl Default for Program {
    fn default() -> Self {
        Self { bytes: vec![0x80, 2] }
    }
}

impl Program {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.raw(b"X").raw(&(text.len() as u32).to_le_bytes()).raw(text.as_bytes())
    }

    pub(crate) fn int(&mut self, number: u32) -> &mut Self {
        self.raw(b"J").raw(&number.to_le_bytes())
    }

    pub(crate) fn open_dict(&mut self) -> &mut Self {
        self.raw(b"}(")
    }

    pub(crate) fn close_dict(&mut self) -> &mut Self {
        self.raw(b"u")
    }

    pub(crate) fn open_list(&mut self) -> &mut Self {
        self.raw(b"](")
    }

    /// Ends a list and puts it into the memo.
    pub(crate) fn close_list(&mut self, entry: u32) -> &mut Self {
        self.raw(b"e").put(entry)
    }

    pub(crate) fn put(&mut self, entry: u32) -> &mut Self {
        self.raw(b"r").raw(&entry.to_le_bytes())
    }

    pub(crate) fn get(&mut self, entry: u32) -> &mut Self {
        match u8::try_from(entry) {
            Ok(entry) => self.raw(&[b'h', entry]),
            Err(_) => self.raw(b"j").raw(&entry.to_le_bytes()),
        }
    }

    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.push(b'.');
        bytes
    }
}
