"""Prints the C source of a library linked to every function of the table."""

from every_row import VERSIONS

print("#include <string.h>")
for name in VERSIONS:
    print(f"extern int {name}(void);")
print("static const struct { const char *name; void *address; } functions[] = {")
for name in VERSIONS:
    print(f'    {{"{name}", (void *){name}}},')
print("""};
void *linked_address(const char *name) {
    for (unsigned at = 0; at < sizeof functions / sizeof *functions; at++)
        if (!strcmp(functions[at].name, name)) return functions[at].address;
    return 0;
}""")
