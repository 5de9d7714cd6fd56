#include "lightcc/collectives/mpi_library.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <utility>

namespace lightcc {
namespace {

constexpr int kThreadMultiple = 3;  // MPI_THREAD_MULTIPLE, in both families.
constexpr std::array<const char*, 4> kThreadLevels = {
    "MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"};

/// A handle by its name in Open MPI and by its number in MPICH.
struct Names {
  const char* symbol;
  std::uint32_t number;
};

struct TypeHandle {
  DataType dtype;
  Names handle;
};
constexpr auto kTypes = std::to_array<TypeHandle>({
    {DataType::kUint8, {"ompi_mpi_uint8_t", 0x4c00013b}},
    {DataType::kInt8, {"ompi_mpi_int8_t", 0x4c000137}},
    {DataType::kUint16, {"ompi_mpi_uint16_t", 0x4c00023c}},
    {DataType::kInt16, {"ompi_mpi_int16_t", 0x4c000238}},
    {DataType::kInt32, {"ompi_mpi_int32_t", 0x4c000439}},
    {DataType::kInt64, {"ompi_mpi_int64_t", 0x4c00083a}},
    {DataType::kFloat32, {"ompi_mpi_float", 0x4c00040a}},
    {DataType::kFloat64, {"ompi_mpi_double", 0x4c00080b}},
});

struct OpHandle {
  ReduceOp op;
  Names handle;
};
constexpr auto kOps = std::to_array<OpHandle>({
    {ReduceOp::kMax, {"ompi_mpi_op_max", 0x58000001}},
    {ReduceOp::kMin, {"ompi_mpi_op_min", 0x58000002}},
    {ReduceOp::kSum, {"ompi_mpi_op_sum", 0x58000003}},
    {ReduceOp::kProduct, {"ompi_mpi_op_prod", 0x58000004}},
});

constexpr Names kErrorsReturn{"ompi_mpi_errors_return", 0x54000001};
constexpr const char* kOfOpenMpi = "ompi_mpi_comm_world";
constexpr std::uintptr_t kInPlaceOfOpenMpi = 1;
constexpr std::uintptr_t kMaxOfStandard = 0xffff;  // Of handles of MPI 5's standard interface.
constexpr auto kInPlaceOfMpich = ~std::uintptr_t{0};

void* pointer_of(std::uintptr_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr): MPI's constants.
}

/// Looks symbols up and remembers the first one that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library), is_open_mpi_(has(kOfOpenMpi)) {}

  bool has(const char* name) const { return ::dlsym(library_, name) != nullptr; }
  bool is_open_mpi() const { return is_open_mpi_; }
  const std::string& missing() const { return missing_; }

  template <typename Function>
  void get(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(find(name));
  }
  MpiHandle get(const Names& handle) {
    return is_open_mpi_ ? find(handle.symbol) : pointer_of(handle.number);
  }

 private:
  void* find(const char* name) {
    void* const found = ::dlsym(library_, name);
    if (found == nullptr && missing_.empty()) {
      missing_ = name;
    }
    return found;
  }

  void* library_;
  bool is_open_mpi_;
  std::string missing_;
};

Status unusable(const std::string& path, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "MPI cannot carry the data: " + path + " " + why};
}

}  // namespace

Result<std::shared_ptr<const MpiLibrary>> MpiLibrary::open(const std::string& path) {
  std::shared_ptr<MpiLibrary> library(new MpiLibrary(path));
  LIGHTCC_RETURN_IF_ERROR(library->load());
  return std::shared_ptr<const MpiLibrary>(std::move(library));
}

Status MpiLibrary::load() {
  // Open MPI's plugins look for its symbols among the global ones.
  void* const library = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    return unusable(path_,
                    std::string("cannot be loaded: ") + ::dlerror());  // NOLINT: of this thread
  }
  Symbols symbols(library);
  symbols.get("MPI_Initialized", calls_.initialized);
  symbols.get("MPI_Finalized", calls_.finalized);
  symbols.get("MPI_Query_thread", calls_.query_thread);
  symbols.get("MPI_Error_string", calls_.error_string);
  symbols.get("MPI_Comm_group", calls_.comm_group);
  symbols.get("MPI_Comm_size", calls_.comm_size);
  symbols.get("MPI_Comm_create_group", calls_.comm_create_group);
  symbols.get("MPI_Comm_set_errhandler", calls_.comm_set_errhandler);
  symbols.get("MPI_Comm_free", calls_.comm_free);
  symbols.get("MPI_Group_incl", calls_.group_incl);
  symbols.get("MPI_Group_free", calls_.group_free);
  symbols.get("MPI_Test", calls_.test);
  symbols.get("MPI_Iallreduce", calls_.iallreduce);
  symbols.get("MPI_Ireduce_scatter", calls_.ireduce_scatter);
  symbols.get("MPI_Iallgatherv", calls_.iallgatherv);
  symbols.get("MPI_Ialltoallv", calls_.ialltoallv);
  symbols.get("MPI_Ibcast", calls_.ibcast);
  symbols.get("MPI_Ibarrier", calls_.ibarrier);
  symbols.get("MPI_Isend", calls_.isend);
  symbols.get("MPI_Irecv", calls_.irecv);
  for (const TypeHandle& type : kTypes) {
    types_[static_cast<std::size_t>(type.dtype)] = symbols.get(type.handle);
  }
  for (const OpHandle& op : kOps) {
    ops_[static_cast<std::size_t>(op.op)] = symbols.get(op.handle);
  }
  errors_return_ = symbols.get(kErrorsReturn);
  is_open_mpi_ = symbols.is_open_mpi();
  in_place_ = pointer_of(is_open_mpi_ ? kInPlaceOfOpenMpi : kInPlaceOfMpich);
  return symbols.missing().empty()
             ? Status()
             : unusable(path_,
                        "is no MPI library of version 3 or later: it has no " + symbols.missing());
}

Status MpiLibrary::check_usable() const {
  int flag = 0;
  if (calls_.initialized(&flag) != 0 || flag == 0) {
    return unusable(path_, "is not initialized in this process");
  }
  LIGHTCC_RETURN_IF_ERROR(check_not_finalized());
  int level = 0;
  if (calls_.query_thread(&level) == 0 && level >= kThreadMultiple) {
    return {};
  }
  const std::string name = level >= 0 && level < kThreadMultiple
                               ? kThreadLevels[static_cast<std::size_t>(level)]
                               : "thread level " + std::to_string(level);
  return unusable(path_,
                  "was initialized with " + name +
                      ", and needs MPI_THREAD_MULTIPLE, as lightcc and the program call it from "
                      "different threads: ask MPI_Init_thread for it (mpi4py: set "
                      "mpi4py.rc.thread_level = 'multiple' before importing mpi4py.MPI), and leave "
                      "HOROVOD_MPI_THREADS_DISABLE unset");
}

Status MpiLibrary::check_not_finalized() const {
  int flag = 0;
  if (calls_.finalized(&flag) == 0 && flag == 0) {
    return {};
  }
  return {ErrorCode::kShutDown,
          "MPI, which carries the data, was finalized: call lightcc's shutdown() before"};
}

bool MpiLibrary::is_comm(MpiHandle comm) const {
  constexpr std::uintptr_t kKindOfMpich = 0x3c000000;
  constexpr std::uintptr_t kCommOfMpich = 0x04000000;
  const auto number = reinterpret_cast<std::uintptr_t>(comm);
  return is_open_mpi_ ? number > kMaxOfStandard
                      : (number >> 32 == 0 || number >> 32 == UINT32_MAX) &&
                            (number & kKindOfMpich) == kCommOfMpich;
}

Status MpiLibrary::status_of(int code, const char* call, int rank) const {
  if (code == 0) {
    return {};
  }
  std::array<char, 4096> text{};  // More than any MPI_MAX_ERROR_STRING.
  int length = 0;
  if (calls_.error_string(code, text.data(), &length) != 0) {
    (void)std::snprintf(text.data(), text.size(), "error code %d", code);
  }
  return make_error(ErrorCode::kSystem, "%s failed on rank %d: %s", call, rank, text.data());
}

}  // namespace lightcc
