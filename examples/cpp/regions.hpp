// Regions of an anomaly map, the same as those of the Python library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace patchsvdd {

struct Region {
  int64_t left = 0, top = 0, right = 0, bottom = 0;  // right and bottom are exclusive
  int64_t area = 0;                                  // pixels of the map
  float peak = 0;
  int64_t peak_x = 0, peak_y = 0;
  std::vector<int64_t> pixels;  // row by row: y * width + x
};

// The largest float not above the value: a float exceeds both or neither.
inline float round_down(double value) {
  const float rounded = static_cast<float>(value);
  return static_cast<double>(rounded) <= value ? rounded : std::nextafterf(rounded, -INFINITY);
}

// Connected regions (diagonals count) with a pixel above the threshold, highest peak first.
//
// An outline below the threshold: regions extend down to it. Above the threshold: regions that exceed the outline
// consist of their pixels above it; others of those above the threshold. Without one, pass the threshold twice. Pixels
// not above a share of their region's peak are left out.
inline std::vector<Region> find_regions(const float* map, int64_t height, int64_t width, double threshold,
                                        double outline, double share = 0) {
  const float limit = round_down(threshold), bound = round_down(outline), level = std::min(limit, bound);
  std::vector<bool> seen(static_cast<size_t>(height * width), false);
  std::vector<Region> regions;
  for (int64_t first = 0; first < height * width; ++first) {
    if (seen[first] || !(map[first] > level)) continue;
    std::vector<int64_t> pixels{first};
    seen[first] = true;
    float peak = map[first];
    for (size_t next = 0; next < pixels.size(); ++next) {
      const int64_t y = pixels[next] / width, x = pixels[next] % width;
      peak = std::max(peak, map[pixels[next]]);
      for (int64_t row = std::max<int64_t>(y - 1, 0); row <= std::min(y + 1, height - 1); ++row) {
        for (int64_t column = std::max<int64_t>(x - 1, 0); column <= std::min(x + 1, width - 1); ++column) {
          const int64_t place = row * width + column;
          if (seen[place] || !(map[place] > level)) continue;
          seen[place] = true;
          pixels.push_back(place);
        }
      }
    }
    if (!(peak > limit)) continue;
    std::sort(pixels.begin(), pixels.end());
    const float kept_above = std::max(peak > bound ? bound : level, round_down(share * peak));
    Region region;
    region.left = width, region.top = height, region.peak = peak;
    bool found = false;
    for (const int64_t place : pixels) {
      if (!(map[place] > kept_above)) continue;
      const int64_t y = place / width, x = place % width;
      region.left = std::min(region.left, x), region.right = std::max(region.right, x + 1);
      region.top = std::min(region.top, y), region.bottom = std::max(region.bottom, y + 1);
      region.pixels.push_back(place);
      if (!found && map[place] == peak) region.peak_x = x, region.peak_y = y, found = true;
    }
    region.area = static_cast<int64_t>(region.pixels.size());
    regions.push_back(std::move(region));
  }
  std::stable_sort(regions.begin(), regions.end(),
                   [](const Region& one, const Region& other) { return one.peak > other.peak; });
  return regions;
}

}  // namespace patchsvdd
