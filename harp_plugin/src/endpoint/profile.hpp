// The HARP profile: what holds for every process of a machine, in a file that harp-setup writes.
//
// Lines of NAME=VALUE with the names of the environment's variables, comments that begin with #,
// and empty lines. The environment has the last word.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace harp {

/// Returns null for a variable that is not set.
using GetVariable = std::function<const char*(const char*)>;

/// Where harp-setup puts the profile.
inline constexpr const char* kProfilePath = "/etc/harp/profile.conf";
inline constexpr std::size_t kMaxProfileBytes = std::size_t{64} << 10U;

class Profile {
 public:
  /// Without a line.
  Profile() = default;

  /// Names are HARP_* and occur once; those that mean nothing to this HARP are kept all the same,
  /// as a newer one may have written them. Nothing, and `error` names `path`, line and what is
  /// allowed, where a line is wrong.
  static std::optional<Profile> parse(std::string_view text,
                                      const std::string& path,
                                      std::string* error);
  /// The file that HARP_PROFILE names; `default_path` where it is not set, no profile where it is
  /// empty or "none". Only the default may be missing. Blocks for the file system.
  static std::optional<Profile> load(const GetVariable& get,
                                     const std::string& default_path,
                                     std::string* error);

  /// Null where the profile does not have it.
  const char* get(const std::string& name) const;
  /// "path:line" of a variable; empty where the profile does not have it.
  std::string where(const std::string& name) const;
  /// One line: which file, and how much it says.
  std::string description() const;

 private:
  struct Entry {
    std::string value;
    int line = 0;
  };
  std::string path_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace harp
