#include "lightcc_cuda/driver/cubins.hpp"

#include <vector>

// LIGHTCC_CUBIN_ROWS is a file of CMake's: LIGHTCC_CUBIN(name, capability, "path") for each.
#ifdef LIGHTCC_CUBIN_ROWS
#define LIGHTCC_CUBIN(name, capability, path)        \
  __asm__(                                           \
      ".pushsection .rodata\n"                       \
      ".balign 16\n"                                 \
      ".hidden lightcc_cubin_" #name "_" #capability \
      "\n"                                           \
      ".global lightcc_cubin_" #name "_" #capability \
      "\n"                                           \
      "lightcc_cubin_" #name "_" #capability         \
      ":\n"                                          \
      ".incbin \"" path                              \
      "\"\n"                                         \
      ".popsection\n");                              \
  extern "C" __attribute__((visibility("hidden"))) const char lightcc_cubin_##name##_##capability[];
#include LIGHTCC_CUBIN_ROWS
#undef LIGHTCC_CUBIN
#endif

namespace lightcc::cuda {

std::span<const Cubin> cubins_in_library() {
  static const std::vector<Cubin> kCubins{
#ifdef LIGHTCC_CUBIN_ROWS
#define LIGHTCC_CUBIN(name, capability, path) \
  {#name, capability, lightcc_cubin_##name##_##capability},
#include LIGHTCC_CUBIN_ROWS
#undef LIGHTCC_CUBIN
#endif
  };
  return kCubins;
}

const Cubin* cubin_for(std::span<const Cubin> cubins, std::string_view name, int capability) {
  const Cubin* best = nullptr;
  for (const Cubin& cubin : cubins) {
    if (cubin.name == name && cubin.capability / 10 == capability / 10 &&
        cubin.capability <= capability &&
        (best == nullptr || cubin.capability > best->capability)) {
      best = &cubin;
    }
  }
  return best;
}

}  // namespace lightcc::cuda
