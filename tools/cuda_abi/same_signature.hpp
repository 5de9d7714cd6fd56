// Whether a declaration of ours is like one of NVIDIA's: as many parameters, each of the same size
// and kind.
#pragma once

#include <type_traits>

namespace lightcc::cuda {

template <typename Ours, typename Theirs>
constexpr bool kIsAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == std::is_class_v<Theirs> &&
    std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;

template <typename Ours, typename Theirs>
struct Same : std::false_type {};

template <typename R, typename S, typename... A, typename... B>
struct Same<R (*)(A...), S (*)(B...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return kIsAlike<R, S> && (kIsAlike<A, B> && ...);
    } else {
      return false;
    }
  }();
};

}  // namespace lightcc::cuda
