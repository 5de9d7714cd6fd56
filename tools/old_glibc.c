/* What GCC's libstdc++.a and libgcc_eh.a want of a glibc newer than 2.28 (old_glibc.py). */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <time.h>

/* Since 2.32. 0: other threads may run, so reference counts are atomic. */
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

/* Since 2.36; std::random_device calls it. */
__attribute__((visibility("hidden"))) unsigned int arc4random(void) {
  unsigned int value = 0;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

/* Since 2.30; std::condition_variable calls it. Without it, libstdc++ waits in the same way. */
__attribute__((visibility("hidden"))) int pthread_cond_clockwait(pthread_cond_t* condition,
                                                                 pthread_mutex_t* mutex,
                                                                 clockid_t clock,
                                                                 const struct timespec* deadline) {
  const long second = 1000000000;
  struct timespec now;
  struct timespec until;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  const long nanoseconds = until.tv_nsec + deadline->tv_nsec - now.tv_nsec + second;
  until.tv_sec += deadline->tv_sec - now.tv_sec + nanoseconds / second - 1;
  until.tv_nsec = nanoseconds % second;
  return pthread_cond_timedwait(condition, mutex, &until);
}

struct search {
  ElfW(Addr) code;
  struct dl_find_object* found;
};

static int visit(struct dl_phdr_info* info, size_t size, void* data) {
  struct search* search = data;
  void* frames = 0;
  int is_inside = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const ElfW(Addr) start = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) {
      frames = (void*)start;
    } else if (part->p_type == PT_LOAD && search->code - start < part->p_memsz) {
      is_inside = 1;
      search->found->dlfo_map_start = (void*)start;
      search->found->dlfo_map_end = (void*)(start + part->p_memsz);
    }
  }
  search->found->dlfo_eh_frame = frames;
  return is_inside;
}

/* Since 2.35; libgcc asks it where the frames of an exception are described. */
__attribute__((visibility("hidden"))) int _dl_find_object(void* code,
                                                          struct dl_find_object* found) {
  struct search search = {(ElfW(Addr))code, found};
  found->dlfo_flags = 0;
  found->dlfo_link_map = 0;
  return dl_iterate_phdr(visit, &search) == 1 && found->dlfo_eh_frame != 0 ? 0 : -1;
}
