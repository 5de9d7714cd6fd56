// Modules, and launches of their kernels.
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lightcc_cuda/fake_driver/calls.hpp"
#include "lightcc_cuda/fake_driver/fake_driver.hpp"
#include "lightcc_cuda/fake_driver/kernels.hpp"
#include "lightcc_cuda/simulator/simulator.hpp"

namespace cuda = lightcc::cuda;
namespace fake = lightcc::cuda::fake;
using cuda::Code;
using cuda::Option;
using fake::settings;

LIGHTCC_API cuModuleLoadDataEx(cuda::ModuleHandle** module,
                               const void* image,
                               unsigned options,
                               Option* names,
                               void** values) {
  LIGHTCC_SPOILS_CAPTURE
  LIGHTCC_NEEDS_CONTEXT("cuModuleLoadDataEx")
  auto made = std::make_unique<cuda::ModuleHandle>();
  std::string_view text = static_cast<const char*>(image);
  const bool is_cubin = text.starts_with(fake::kCubinMagic);
  if (is_cubin) {
    if (settings().number("cubin") == 0) {
      return fake::kNoBinary;
    }
    text.remove_prefix(fake::kCubinMagic.size());
  }
  if ((!is_cubin && settings().number("ptx") == 0) || !fake::read_module(text, *made)) {
    for (unsigned i = 0; i < options; ++i) {
      if (names[i] == cuda::kJitErrorLog) {
        (void)std::snprintf(static_cast<char*>(values[i]), 64, "ptxas: this is not for me");
      }
    }
    return cuda::kErrorUnsupportedPtx;
  }
  fake::traffic().count_module();
  *module = made.release();
  ++fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuModuleUnload(cuda::ModuleHandle* module) {
  delete module;
  --fake::live_objects;
  return cuda::kSuccess;
}
LIGHTCC_API cuModuleGetFunction(cuda::FunctionHandle** function,
                                cuda::ModuleHandle* module,
                                const char* name) {
  LIGHTCC_NEEDS_CONTEXT("cuModuleGetFunction")
  const auto found = fake::kernels().find(std::string_view(name));
  if (!module->kernels.contains(std::string_view(name)) || found == fake::kernels().end()) {
    return cuda::kErrorNotFound;
  }
  *function = &found->second;
  return cuda::kSuccess;
}
static Code load_function(cuda::FunctionHandle* /*function*/) {
  LIGHTCC_NEEDS_CONTEXT("cuFuncLoad")
  return cuda::kSuccess;
}
LIGHTCC_MAY_LACK(cuFuncLoad, load_function)
LIGHTCC_API cuLaunchKernel(cuda::FunctionHandle* function,
                           unsigned blocks,
                           unsigned blocks_y,
                           unsigned blocks_z,
                           unsigned threads,
                           unsigned threads_y,
                           unsigned threads_z,
                           unsigned /*shared_bytes*/,
                           cuda::StreamHandle* stream,
                           void** parameters,
                           void** /*extra*/) {
  LIGHTCC_NEEDS_CONTEXT("cuLaunchKernel")
  if (function == nullptr || blocks == 0 || threads == 0 || threads > 1024 ||
      blocks_y * blocks_z * threads_y * threads_z != 1) {
    return fake::kInvalidValue;
  }
  fake::traffic().count_launch();
  const auto* const given = static_cast<const std::byte*>(parameters[0]);
  auto arguments = std::make_shared<std::vector<std::byte>>(given, given + function->bytes);
  const std::vector<cuda::Address> used = fake::device_memories().translate(*arguments);
  if (settings().number("wrong") != 0) {
    return cuda::kSuccess;
  }
  const auto run = [=] {
    const cuda::simulator::Shape shape{.blocks = blocks, .threads = threads};
    if (const std::string wrong = function->run(shape, arguments->data()); !wrong.empty()) {
      (void)std::fprintf(stderr, "fake driver: %s\n", wrong.c_str());
      settings().break_down(fake::kLaunchFailed);
    }
  };
  fake::enqueue(stream, run, used);
  return cuda::kSuccess;
}
