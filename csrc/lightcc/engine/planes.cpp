#include "lightcc/engine/planes.hpp"

#include <utility>

#include "lightcc/engine/membership.hpp"

namespace lightcc {

Result<Planes> Planes::make(Membership& world,
                            SimdLevel simd,
                            const WorldOptions& options,
                            const std::shared_ptr<LoopBell>& bell,
                            const Joining* joining) {
  const Knobs& knobs = options.knobs;
  const auto taken = [](MemoryKind kind) {
    return make_error(ErrorCode::kInvalidArgument,
                      "two planes serve %s memory; one is allowed",
                      memory_kind_name(kind));
  };
  Planes all;
  all.bell_ = bell;
  auto host = std::make_unique<HostPlane>(world, knobs, simd);
  all.host_ = host.get();
  all.planes_[index_of(MemoryKind::kHost)] = std::move(host);
  for (const PlaneMaker& maker : options.planes) {
    LIGHTCC_ASSIGN_OR_RETURN(
        std::unique_ptr<Plane> plane,
        maker({.world = world,
               .knobs = knobs,
               .simd = simd,
               .host = all.host(),
               .exchange =
                   [&](const std::string& key, Bytes own) {
                     return joining == nullptr
                                ? Result<std::vector<Bytes>>({std::move(own)})
                                : exchange(*joining,
                                           options.epoch.key_prefix + "/plane/" + key,
                                           std::move(own));
                   },
               .agree =
                   [&](const std::string& key, const Made& made, Duration patience) {
                     return agree(
                         joining, options.epoch.key_prefix + "/plane/" + key, made, patience);
                   },
               .bell = bell}));
    if (plane == nullptr) {
      continue;
    }
    const MemoryKind kind = plane->memory_kind();
    if (all.serves(kind)) {
      return taken(kind);
    }
    all.planes_[index_of(kind)] = std::move(plane);
  }
  for (const std::shared_ptr<Staging>& one : options.staging) {
    std::shared_ptr<Staging>& staging = all.staging_[index_of(one->memory_kind())];
    if (staging != nullptr) {
      return taken(one->memory_kind());
    }
    staging = one;
    staging->connect(bell);
  }
  return all;
}

const char* Planes::what_makes_groups() const {
  for (const auto& plane : planes_) {
    if (plane != nullptr && plane->what_makes_groups() != nullptr) {
      return plane->what_makes_groups();
    }
  }
  return nullptr;
}

Status Planes::add_process_set(std::uint32_t id, const std::vector<std::int32_t>& ranks) {
  for (const auto& plane : planes_) {
    if (plane != nullptr) {
      LIGHTCC_RETURN_IF_ERROR(plane->add_process_set(id, ranks));
    }
  }
  return {};
}

// Planes may use the host's, which is the first.
void Planes::remove_process_set(std::uint32_t id) {
  for (std::size_t kind = planes_.size(); kind-- > 0;) {
    if (planes_[kind] != nullptr) {
      planes_[kind]->remove_process_set(id);
    }
  }
}

Result<bool> Planes::make_groups() {
  Status lost;
  bool moved = false;
  for (const auto& plane : planes_) {
    if (plane == nullptr) {
      continue;
    }
    const Result<bool> made = plane->make_groups();
    if (made.ok()) {
      moved = moved || *made;
    } else if (made.status().code() == ErrorCode::kPeerFailed) {
      lost = made.status();
    } else {
      return made;
    }
  }
  return lost.ok() ? Result<bool>(moved) : lost;
}

bool Planes::get_lanes(std::uint32_t id, Lanes& lanes) {
  for (std::size_t kind = 0; kind < planes_.size(); ++kind) {
    lanes[kind] = planes_[kind] == nullptr ? nullptr : planes_[kind]->lanes(id);
    if (planes_[kind] != nullptr && lanes[kind] == nullptr) {
      return false;
    }
  }
  return true;
}

Planes::Facts Planes::facts(std::uint32_t id) const {
  Facts facts;
  for (std::size_t kind = 0; kind < planes_.size(); ++kind) {
    if (planes_[kind] != nullptr) {
      facts[kind] = planes_[kind]->facts(id);
    }
  }
  return facts;
}

}  // namespace lightcc
