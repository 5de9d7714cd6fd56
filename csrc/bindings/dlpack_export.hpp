// Results on their way to a framework: the engine's memory, described in DLPack's words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "dlpack.hpp"
#include "tensors.hpp"

namespace lightcc::bindings::dlpack {

/// DLPack's word for a dtype of the engine's.
constexpr DataType type_of(lightcc::DataType dtype) {
  using Known = lightcc::DataType;
  const auto make = [](std::uint8_t code, std::uint8_t bits) {
    return DataType{.code = code, .bits = bits, .lanes = 1};
  };
  switch (dtype) {
    case Known::kUint8:
      return make(kUint, 8);
    case Known::kInt8:
      return make(kInt, 8);
    case Known::kUint16:
      return make(kUint, 16);
    case Known::kInt16:
      return make(kInt, 16);
    case Known::kInt32:
      return make(kInt, 32);
    case Known::kInt64:
      return make(kInt, 64);
    case Known::kFloat16:
      return make(kFloat, 16);
    case Known::kFloat32:
      return make(kFloat, 32);
    case Known::kFloat64:
      return make(kFloat, 64);
    case Known::kBool:
      return make(kBool, 8);
    case Known::kBfloat16:
      break;
  }
  return make(kBfloat, 16);
}

/// Memory with what describes it. Freed by its receiver, from any thread and without the GIL: it
/// holds nothing of Python.
template <typename Managed>
struct Export {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::shared_ptr<OutputBuffer> output;

  static void release(Managed* managed) {
    const std::unique_ptr<Export> released(static_cast<Export*>(managed->context));
  }
};

template <typename Managed>
std::unique_ptr<Export<Managed>> make_export(lightcc::DataType dtype,
                                             const std::vector<std::int64_t>& shape,
                                             std::shared_ptr<OutputBuffer> output,
                                             const Memory& memory = {}) {
  auto made = std::make_unique<Export<Managed>>();
  made->shape = shape;
  made->strides.resize(shape.size());
  std::int64_t stride = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    made->strides[i] = stride;
    stride *= shape[i] == 0 ? 1 : shape[i];
  }
  made->managed.context = made.get();
  made->managed.deleter = &Export<Managed>::release;
  made->managed.tensor = {
      .data = output_data(dtype, shape, output),
      .device = {.type = memory.kind == MemoryKind::kCuda ? kCuda : kCpu, .id = memory.device},
      .dimensions = static_cast<std::int32_t>(shape.size()),
      .dtype = type_of(dtype),
      .shape = made->shape.data(),
      .strides = made->strides.data(),
      .byte_offset = 0};
  made->output = std::move(output);
  return made;
}

/// The capsule "dltensor", which its receiver renames once it has taken over what is in it.
pybind11::object to_capsule(std::unique_ptr<Export<ManagedTensor>> made);

}  // namespace lightcc::bindings::dlpack
