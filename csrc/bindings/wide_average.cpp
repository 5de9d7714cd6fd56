#include "wide_average.hpp"

#include <algorithm>
#include <memory>

namespace lightcc::bindings {

std::optional<WideAverage> widen(Operation& operation) {
  const Signature& s = operation.request.signature;
  const TensorRef& input = operation.input;
  std::size_t count = 1;
  for (const std::int64_t extent : input.shape) {
    count *= static_cast<std::size_t>(extent);
  }
  const bool is_byte = input.dtype == DataType::kInt8 || input.dtype == DataType::kUint8;
  if (s.op != OpType::kAllreduce || s.reduce_op != ReduceOp::kAverage || !is_byte ||
      input.memory.kind != MemoryKind::kHost || count == 0) {
    return std::nullopt;
  }
  WideAverage wide{
      .values = std::vector<std::int32_t>(count),
      .target = operation.output.value_or(TensorRef{.dtype = input.dtype, .shape = input.shape})};
  if (input.dtype == DataType::kInt8) {
    std::copy_n(static_cast<const std::int8_t*>(input.data), count, wide.values.begin());
  } else {
    std::copy_n(static_cast<const std::uint8_t*>(input.data), count, wide.values.begin());
  }
  operation.input = {
      .data = wide.values.data(), .dtype = DataType::kInt32, .shape = wide.target.shape};
  operation.output = operation.input;
  return wide;
}

void narrow(const WideAverage& wide, Outcome& outcome) {
  void* target = wide.target.data;
  if (target == nullptr) {
    outcome.shape = wide.target.shape;
    outcome.output = std::make_shared<OutputBuffer>(wide.values.size());
    target = outcome.output->data();
  }
  // An average lies between the values that it is of, so it fits again.
  std::ranges::transform(wide.values, static_cast<std::uint8_t*>(target), [](std::int32_t value) {
    return static_cast<std::uint8_t>(value);
  });
}

}  // namespace lightcc::bindings
