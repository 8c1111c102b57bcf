"""What the checks of `scripts/style` pass over, each row with its reason. One place for all.

The check `exemptions` reports a row that nothing needs any more, so the tables only shrink.
"""


class Exemptions:
    def __init__(self, folders=(), long_files=(), generated_text=(), cycles=(), type_names=(), public_modules=(), absent_paths=()):
        self.folders = dict(folders)
        self.long_files = dict(long_files)
        self.generated_text = dict(generated_text)
        self.cycles = list(cycles)
        self.type_names = dict(type_names)
        self.public_modules = dict(public_modules)
        self.absent_paths = dict(absent_paths)

    def folder_row(self, folder):
        """The row of `folders` that covers `folder`, or None."""
        for pattern in self.folders:
            if folder == pattern or (pattern.endswith("/*") and folder.startswith(pattern[:-1])):
                return pattern
        return None

    def folder_limit(self, folder, limit):
        """The limit for a folder: None where any number of entries is fine."""
        row = self.folder_row(folder)
        return limit if row is None else self.folders[row][0]


NO_EXEMPTIONS = Exemptions()

OF_THIS_REPOSITORY = Exemptions(
    # Folder, or `folder/*` for all below it: (limit or None, reason).
    folders={
        "": (29, "tools look for their files at the root"),
        "fuzz/corpus/*": (None, "inputs of fuzz targets, one file each"),
    },
    long_files={
        "docs/trace-format.md": "the specification of one format, most of it tables",
    },
    generated_text={},
    # (folder, set of modules below it that may import each other); reason as a comment.
    cycles=[
        # A trampoline calls a hook, which swizzles a class, which takes a trampoline.
        ("interpose/metal", {"devices", "hooks", "object_info", "swizzled_classes", "trampolines"}),
    ],
    type_names={
    },
    # (crate, module): reason.
    public_modules={},
    # A path that prose names and a clean checkout lacks: reason.
    absent_paths={},
)
