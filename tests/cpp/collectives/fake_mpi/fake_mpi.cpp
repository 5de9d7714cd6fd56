// A library of MPICH's binary interface for one rank, which fails or waits when it is told to.
#include <cstddef>
#include <cstdio>
#include <cstring>

#define FAKE_MPI extern "C" [[gnu::visibility("default")]]

// What a test sets and reads.
FAKE_MPI int fake_mpi_level;       // Of threads.
FAKE_MPI int fake_mpi_code;        // What operations return.
FAKE_MPI int fake_mpi_is_waiting;  // Operations do not end.
FAKE_MPI int fake_mpi_comms;       // That are not freed.
FAKE_MPI void* fake_mpi_memory;    // Of the last operation.
int fake_mpi_level = 3;
int fake_mpi_code = 0;
int fake_mpi_is_waiting = 0;
int fake_mpi_comms = 0;
void* fake_mpi_memory = nullptr;

namespace {

using Handle = void*;

int begin(void* memory) {
  fake_mpi_memory = memory;
  return fake_mpi_code;
}

}  // namespace

FAKE_MPI int MPI_Initialized(int* flag) {
  *flag = 1;
  return 0;
}
FAKE_MPI int MPI_Finalized(int* flag) {
  *flag = 0;
  return 0;
}
FAKE_MPI int MPI_Query_thread(int* level) {
  *level = fake_mpi_level;
  return 0;
}
FAKE_MPI int MPI_Error_string(int code, char* text, int* length) {
  *length = std::sprintf(text, "the fake's error %d", code);
  return 0;
}
FAKE_MPI int MPI_Comm_group(Handle /*comm*/, Handle* /*group*/) {
  return 0;
}
FAKE_MPI int MPI_Comm_size(Handle /*comm*/, int* size) {
  *size = 1;
  return 0;
}
FAKE_MPI int MPI_Comm_create_group(Handle /*comm*/, Handle /*group*/, int /*tag*/, Handle* made) {
  const unsigned number = 0x84000000U + static_cast<unsigned>(++fake_mpi_comms);
  std::memcpy(made, &number, sizeof(number));
  return 0;
}
FAKE_MPI int MPI_Comm_set_errhandler(Handle /*comm*/, Handle /*handler*/) {
  return 0;
}
FAKE_MPI int MPI_Comm_free(Handle* /*comm*/) {
  --fake_mpi_comms;
  return 0;
}
FAKE_MPI int MPI_Group_incl(Handle /*group*/,
                            int /*count*/,
                            const int* /*ranks*/,
                            Handle* /*made*/) {
  return 0;
}
FAKE_MPI int MPI_Group_free(Handle* /*group*/) {
  return 0;
}
FAKE_MPI int MPI_Test(Handle* /*request*/, int* flag, void* /*status*/) {
  *flag = fake_mpi_is_waiting == 0 ? 1 : 0;
  return 0;
}
FAKE_MPI int MPI_Iallreduce(
    const void*, void* out, int, Handle /*type*/, Handle /*op*/, Handle /*comm*/, Handle*) {
  return begin(out);
}
FAKE_MPI int MPI_Ireduce_scatter(
    const void*, void* out, const int*, Handle /*type*/, Handle /*op*/, Handle /*comm*/, Handle*) {
  return begin(out);
}
FAKE_MPI int MPI_Iallgatherv(
    const void*, int, Handle, void* out, const int*, const int*, Handle, Handle, Handle*) {
  return begin(out);
}
FAKE_MPI int MPI_Ialltoallv(const void*,
                            const int*,
                            const int*,
                            Handle,
                            void* out,
                            const int*,
                            const int*,
                            Handle,
                            Handle,
                            Handle*) {
  return begin(out);
}
FAKE_MPI int MPI_Ibcast(void* data, int, Handle, int, Handle, Handle*) {
  return begin(data);
}
FAKE_MPI int MPI_Ibarrier(Handle, Handle*) {
  return begin(nullptr);
}
FAKE_MPI int MPI_Isend(const void*, int, Handle, int, int, Handle, Handle*) {
  return begin(nullptr);
}
FAKE_MPI int MPI_Irecv(void* out, int, Handle, int, int, Handle, Handle*) {
  return begin(out);
}
