/* Its folder is removed with all files while it records.

   trace: partial
   says: . */
#include "../../observe.h"

int main(void) {
    char folder[PATH_MAX];
    CHECK(mkdir("gone", 0700) == 0 && chdir("gone") == 0 && getcwd(folder, sizeof folder));
    gpu_begin();
    gpu_pairs(5000);
    DIR *all = opendir(".");
    for (struct dirent *entry; (entry = readdir(all));) unlink(entry->d_name);
    closedir(all);
    say("removed: %d", rmdir(folder));
    for (int i = 0; i < 20; i++) {
        gpu_pairs(5000);
        usleep(10000);
    }
    observe("end");
    return 0;
}
