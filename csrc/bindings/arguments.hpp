// Arguments that a user's call passes on as they are: a value of another type gets an error in
// words of the API, where pybind11 would print the binding's own signature.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace lightcc::bindings {

/// A text as a template argument.
template <std::size_t Size>
struct ArgumentName {
  // Made from a literal in a template argument list.
  // NOLINTNEXTLINE(*-explicit-constructor,modernize-avoid-c-arrays): a literal is an array.
  consteval ArgumentName(const char (&text)[Size]) { std::copy_n(text, Size, characters.data()); }
  constexpr std::string_view view() const { return {characters.data(), Size - 1}; }

  std::array<char, Size> characters{};
};

/// A value that the user knows by the name `Name`.
template <typename T, ArgumentName Name>
struct Argument {
  T value{};
};

template <typename T>
constexpr std::string_view allowed_values() {
  if constexpr (std::is_same_v<T, std::optional<std::string>>) {
    return "a text or None";
  } else if constexpr (std::is_integral_v<T>) {
    return "an integer";
  } else {
    static_assert(std::is_floating_point_v<T>);
    return "a number";
  }
}

}  // namespace lightcc::bindings

/// Throws TypeError where the value does not fit.
template <typename T, lightcc::bindings::ArgumentName Name>
struct pybind11::detail::type_caster<lightcc::bindings::Argument<T, Name>> {
  using Loaded = lightcc::bindings::Argument<T, Name>;
  PYBIND11_TYPE_CASTER(Loaded, make_caster<T>::name);

  bool load(handle source, bool convert) {
    make_caster<T> caster;
    if (!caster.load(source, convert)) {
      throw type_error(std::string(Name.view()) + " is " + repr(source).cast<std::string>() +
                       ": expected " + std::string(lightcc::bindings::allowed_values<T>()));
    }
    value.value = cast_op<T&&>(std::move(caster));
    return true;
  }
};
