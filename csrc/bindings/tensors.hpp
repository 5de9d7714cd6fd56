// Tensors of any framework, as the engine uses them: taken where they lie, never copied.
//
// A TensorKind is all that is known about one framework; each has a file of its own
// (numpy_tensors.cpp, torch_tensors.cpp, tensorflow_tensors.cpp, cuda_array_tensors.cpp). No
// framework is imported, included or linked: one that a tensor comes from has been imported by
// whoever made the tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "lightcc/engine/world.hpp"

namespace lightcc::bindings {

/// What the engine will do with a tensor's memory.
enum class Access : std::uint8_t { kRead, kWrite };

class TensorKind;

/// Memory with what a tensor held, for a framework that hands out none to write into.
struct ValueCopy {
  std::shared_ptr<OutputBuffer> memory;
  std::vector<std::int64_t> shape;
};

/// The device of memory that lies on the GPU that its address belongs to.
inline constexpr std::int32_t kDeviceOfItsAddress = -1;

/// A tensor and the Python object that it is. Needs the GIL wherever `owner` is copied or dropped.
struct TensorView {
  TensorRef ref;                      ///< Written only where Access::kWrite was asked for.
  pybind11::object owner;             ///< Keeps the memory valid, and is the result in place.
  const TensorKind* kind = nullptr;   ///< Makes results.
  std::shared_ptr<ValueCopy> copy{};  ///< What `ref` is of, where it is not the tensor itself.
  /// In CUDA memory: the stream that the tensor's values come from, as the driver's handle. None:
  /// they are there.
  std::optional<std::uintptr_t> stream{};
  pybind11::object held{};  ///< What keeps the memory valid beside the owner.
};

/// What there is to know about one framework. Stateless; methods need the GIL and raise Python
/// errors.
class TensorKind {
 public:
  TensorKind() = default;
  TensorKind(const TensorKind&) = delete;
  TensorKind& operator=(const TensorKind&) = delete;
  virtual ~TensorKind() = default;

  /// Whether `object` is of this framework.
  virtual bool has(pybind11::handle object) const = 0;
  /// Where `object`, which has() accepted, lies. TypeError or ValueError, naming what was found,
  /// for layouts, dtypes and devices that the engine does not know.
  virtual TensorView view(pybind11::handle object, Access access) const = 0;
  /// A new tensor over engine-allocated memory, which it keeps alive; of the dtype of `like`.
  virtual pybind11::object from_output(const TensorView& like,
                                       const std::vector<std::int64_t>& shape,
                                       std::shared_ptr<OutputBuffer> output) const = 0;
  /// A new tensor like `view`, in memory of the framework's own, for a result; none: the engine
  /// allocates it.
  virtual std::optional<TensorView> make_output(const TensorView& /*like*/) const {
    return std::nullopt;
  }
  /// Splits of an alltoall as a 1-D int32 tensor.
  virtual pybind11::object from_splits(const std::vector<std::int64_t>& splits) const = 0;
  /// In CUDA memory: the stream on which this thread uses a result in `view` next, as the driver's
  /// handle. None: any stream may use it, so it has to be there.
  virtual std::optional<std::uintptr_t> result_stream(const TensorView& /*view*/) const {
    return std::nullopt;
  }
  /// What the caller gets for `view`, made for Access::kWrite, into whose memory a result has come.
  virtual pybind11::object written(const TensorView& view) const { return view.owner; }
};

const TensorKind& numpy_kind();
const TensorKind& torch_kind();
const TensorKind& tensorflow_kind();
const TensorKind& cuda_array_kind();

/// The tensor that `object` is, by its type. Raises as TensorKind::view() does, and TypeError for
/// what is no tensor.
TensorView to_tensor(pybind11::handle object, Access access);

/// Splits of an alltoall: a 1-D integer tensor or a sequence of integers; None is even splits
/// (empty). Of torch tensors, int32 is the only dtype, as in Horovod.
std::vector<std::int64_t> to_splits(pybind11::handle object);

// For the kinds' own use: errors in one wording, and the check of what the engine delivers.

/// The dtype that numpy's letter and a size say; none: the engine has no such.
std::optional<DataType> builtin_data_type(char kind, std::ptrdiff_t bytes);
[[noreturn]] void throw_not_contiguous();
[[noreturn]] void throw_read_only();
[[noreturn]] void throw_unsupported_dtype(const std::string& name);
std::size_t byte_count(DataType dtype, const std::vector<std::int64_t>& shape);
void check_aligned(const void* data, std::size_t element_bytes);
/// The start of `output`: null where a tensor of `shape` has no bytes. EngineError where the buffer
/// is too small.
std::byte* output_data(DataType dtype,
                       const std::vector<std::int64_t>& shape,
                       const std::shared_ptr<OutputBuffer>& output);

/// Splits as int32 values.
std::shared_ptr<OutputBuffer> splits_buffer(const std::vector<std::int64_t>& splits);

}  // namespace lightcc::bindings
