#include "lightcc/engine/planes.hpp"

#include <utility>

namespace lightcc {

Result<Planes> Planes::make(Membership& world,
                            const Knobs& knobs,
                            SimdLevel simd,
                            const std::vector<PlaneMaker>& makers,
                            const std::vector<std::shared_ptr<Staging>>& staging) {
  const auto taken = [](MemoryKind kind) {
    return make_error(ErrorCode::kInvalidArgument,
                      "two planes serve %s memory; one is allowed",
                      memory_kind_name(kind));
  };
  Planes all;
  auto host = std::make_unique<HostPlane>(world, knobs, simd);
  all.host_ = host.get();
  all.planes_[index_of(MemoryKind::kHost)] = std::move(host);
  for (const PlaneMaker& maker : makers) {
    LIGHTCC_ASSIGN_OR_RETURN(
        std::unique_ptr<Plane> plane,
        maker({.world = world, .knobs = knobs, .simd = simd, .host = all.host()}));
    const MemoryKind kind = plane->memory_kind();
    if (all.serves(kind)) {
      return taken(kind);
    }
    all.planes_[index_of(kind)] = std::move(plane);
  }
  for (const std::shared_ptr<Staging>& one : staging) {
    if (all.serves(one->memory_kind())) {
      return taken(one->memory_kind());
    }
    all.staging_[index_of(one->memory_kind())] = one;
  }
  return all;
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

bool Planes::get_groups(std::uint32_t id, Groups& groups) {
  for (std::size_t kind = 0; kind < planes_.size(); ++kind) {
    groups[kind] = planes_[kind] == nullptr ? nullptr : planes_[kind]->groups(id);
    if (planes_[kind] != nullptr && groups[kind] == nullptr) {
      return false;
    }
  }
  for (std::size_t kind = 0; kind < staging_.size(); ++kind) {
    if (staging_[kind] != nullptr) {
      groups[kind] = groups[index_of(MemoryKind::kHost)];
    }
  }
  return true;
}

}  // namespace lightcc
