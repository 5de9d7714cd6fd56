// The kernels that modules of the fake driver may have: the simulator runs them. Tables in device
// memory are translated for that, as their rows have addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lightcc_cuda/fake_driver/state.hpp"
#include "lightcc_cuda/simulator/kernels.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace lightcc::cuda::fake {

inline constexpr Code kIllegalAddress = 700;

template <typename Arguments, void (*Kernel)(Arguments)>
std::string run_kernel(const simulator::Shape& shape, const void* arguments) {
  return simulator::launch(shape, Kernel, *static_cast<const Arguments*>(arguments));
}

/// A table in device memory, whose rows have addresses.
template <typename Row>
std::vector<Row> translated(const Row* rows, std::size_t count) {
  const auto* const table = reinterpret_cast<const std::byte*>(rows);
  std::vector<std::byte> bytes(table, table + count * sizeof(Row));
  device_memories().translate(bytes);
  std::vector<Row> made(count);
  std::ranges::copy(bytes, reinterpret_cast<std::byte*>(made.data()));
  return made;
}

template <void (*Kernel)(TopkArguments)>
std::string run_topk_kernel(const simulator::Shape& shape, const void* arguments) {
  TopkArguments given = *static_cast<const TopkArguments*>(arguments);
  const std::vector<TopkTensor> tensors = translated(given.tensors, given.count);
  given.tensors = tensors.data();
  return simulator::launch(shape, Kernel, given);
}

template <void (*Kernel)(MergeArguments)>
std::string run_merge_kernel(const simulator::Shape& shape, const void* arguments) {
  MergeArguments given = *static_cast<const MergeArguments*>(arguments);
  const std::vector<MergeTensor> tensors = translated(given.tensors, given.count);
  const std::vector<MergeList> lists = translated(given.lists, given.num_lists);
  given.tensors = tensors.data();
  given.lists = lists.data();
  return simulator::launch(shape, Kernel, given);
}

/// A kernel of tests, which a module of theirs has.
inline std::string write_nowhere(const simulator::Shape& /*shape*/, const void* /*arguments*/) {
  settings().break_down(kIllegalAddress);
  return {};
}

inline std::map<std::string, FunctionHandle, std::less<>>& kernels() {
#define LIGHTCC_ROW(name, arguments) {#name, {sizeof(arguments), run_kernel<arguments, name>}},
#define LIGHTCC_BUCKET_ROW(name, ...) LIGHTCC_ROW(name, BucketArguments)
#define LIGHTCC_TOPK_ROW(name, ...) {#name, {sizeof(TopkArguments), run_topk_kernel<name>}},
#define LIGHTCC_MERGE_ROW(name, ...) {#name, {sizeof(MergeArguments), run_merge_kernel<name>}},
  static std::map<std::string, FunctionHandle, std::less<>> all{
      LIGHTCC_KERNELS_BY_ARGUMENTS(LIGHTCC_BUCKET_ROW,
                                   LIGHTCC_TOPK_ROW,
                                   LIGHTCC_MERGE_ROW)  //
      {"write_nowhere", {sizeof(Address), write_nowhere}}};
#undef LIGHTCC_MERGE_ROW
#undef LIGHTCC_TOPK_ROW
#undef LIGHTCC_BUCKET_ROW
#undef LIGHTCC_ROW
  return all;
}

/// The names of the kernels of a text, if it is PTX for this GPU.
inline bool read_module(std::string_view text, ModuleHandle& module) {
  constexpr std::string_view kEntry = ".visible .entry ";
  if (!text.starts_with(".version 7.0\n.target sm_70\n")) {
    return false;
  }
  for (std::size_t at = text.find(kEntry); at != text.npos; at = text.find(kEntry, at + 1)) {
    const std::size_t begin = at + kEntry.size();
    module.kernels.emplace(text.substr(begin, text.find('(', begin) - begin));
  }
  return true;
}

}  // namespace lightcc::cuda::fake
