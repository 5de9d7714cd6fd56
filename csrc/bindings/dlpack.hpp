// DLPack, declared by ourselves: the C structures by which array libraries hand each other memory,
// and the table of C functions (DLPack 1.3's exchange API) that a library publishes for its tensor
// type, so that nothing of it needs to be included or linked.
//
// Only what lightcc uses. The layout is DLPack's ABI, which stays as it is within a major version.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lightcc::bindings::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;

// DLDeviceType.
inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;
inline constexpr std::int32_t kCudaHost = 3;  ///< Pinned memory, which the CPU can use as well.

/// DLPACK_FLAG_BITMASK_READ_ONLY.
inline constexpr std::uint64_t kReadOnly = 1;

// DLDataTypeCode.
inline constexpr std::uint8_t kInt = 0;
inline constexpr std::uint8_t kUint = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;
inline constexpr std::uint8_t kBool = 6;

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  bool operator==(const DataType&) const = default;
};

/// A view: nothing in it is owned.
struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< In elements; null: contiguous.
  std::uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24);

/// An owning tensor as passed in capsules named "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor* self);
};
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, context) == 48);

/// An owning tensor as passed through the exchange API.
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor* self);
  std::uint64_t flags;
  Tensor tensor;
};
static_assert(sizeof(VersionedTensor) == 80 && offsetof(VersionedTensor, tensor) == 32);

struct ExchangeHeader {
  Version version;
  const ExchangeHeader* previous;  ///< The table of an older version, or null.
};

/// Found at `type(tensor).__dlpack_c_exchange_api__`, a capsule named "dlpack_exchange_api". The
/// functions return 0, or -1 with a Python error set; they need the GIL.
struct ExchangeApi {
  ExchangeHeader header;
  void* allocate;
  void* export_tensor;
  /// Makes a Python tensor of `tensor`, which it takes over.
  int (*import_tensor)(VersionedTensor* tensor, void** python_object);
  /// Describes a Python tensor, which must outlive the description. May be null.
  int (*describe_tensor)(void* python_object, Tensor* description);
  /// The stream that the calling thread gives work to. May be null.
  int (*current_work_stream)(std::int32_t device_type, std::int32_t device, void** stream);
};
static_assert(sizeof(ExchangeApi) == 56 && offsetof(ExchangeApi, describe_tensor) == 40);

}  // namespace lightcc::bindings::dlpack
