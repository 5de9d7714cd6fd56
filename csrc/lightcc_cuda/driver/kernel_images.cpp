#include "lightcc_cuda/driver/kernel_images.hpp"

#include <array>
#include <vector>

// CMake knows that the files are part of this source. It names the folder LIGHTCC_PTX_FOLDER, and
// LIGHTCC_CUBIN_ROWS, a file of LIGHTCC_CUBIN(name, capability, "path") for each.
#define LIGHTCC_PTX_FILES(X) \
  X(bucket)                  \
  X(merge)                   \
  X(topk_encode)             \
  X(topk_measure)            \
  X(topk_pack)               \
  X(topk_select)             \
  X(topk_threshold)

/// Defines `symbol`: the bytes of a file, and a zero.
// NOLINTBEGIN(bugprone-macro-parentheses): a symbol takes none.
#define LIGHTCC_EMBED(symbol, path)   \
  __asm__(                            \
      ".pushsection .rodata\n"        \
      ".balign 16\n"                  \
      ".hidden " #symbol              \
      "\n"                            \
      ".global " #symbol "\n" #symbol \
      ":\n"                           \
      ".incbin \"" path               \
      "\"\n"                          \
      ".byte 0\n"                     \
      ".popsection\n");               \
  extern "C" __attribute__((visibility("hidden"))) const char symbol[];
// NOLINTEND(bugprone-macro-parentheses)

#define LIGHTCC_PTX(name) LIGHTCC_EMBED(lightcc_ptx_##name, LIGHTCC_PTX_FOLDER "/" #name ".ptx")
LIGHTCC_PTX_FILES(LIGHTCC_PTX)
#ifdef LIGHTCC_CUBIN_ROWS
#define LIGHTCC_CUBIN(name, capability, path) \
  LIGHTCC_EMBED(lightcc_cubin_##name##_##capability, path)
#include LIGHTCC_CUBIN_ROWS
#undef LIGHTCC_CUBIN
#endif

namespace lightcc::cuda {

std::span<const PtxText> ptx_texts() {
#define LIGHTCC_PTX_ROW(name) PtxText{#name, lightcc_ptx_##name},
  static constexpr std::array kTexts{LIGHTCC_PTX_FILES(LIGHTCC_PTX_ROW)};
  return kTexts;
}

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
