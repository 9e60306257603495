// A file that is used in streams which the program destroys and creates meanwhile.
#include "arrays/stream_places.hpp"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

namespace gpufs::testing {
namespace {

using arrays::device_memory;

// Streams are only numbers: a test chooses which stream has a handle.
class fake_memory final : public device_memory {
 public:
  std::map<void*, std::uint64_t> id_of_handle;
  std::set<std::uint64_t> done;         // streams whose work has ended
  std::multiset<std::uint64_t> waited;  // streams that were waited for
  unsigned events = 0;

  std::uint64_t id_of(void* stream) override { return id_of_handle.at(stream); }
  std::unique_ptr<event> make_event() override { return std::make_unique<fake_event>(*this); }

  void* own_stream() override { return nullptr; }
  void* background_stream() override { return nullptr; }
  void* allocate(std::uint64_t, void*) override { return nullptr; }
  void free(void*, void*, bool) noexcept override {}
  void* pin() override { return nullptr; }
  void unpin(void*) noexcept override {}
  void* upload(const void*, std::uint64_t, void*) override { return nullptr; }
  void check_address(const void*) override {}
  void copy_to_host(void*, const void*, std::uint64_t, void*) override {}

 private:
  class fake_event final : public event {
   public:
    explicit fake_event(fake_memory& of) : of_(of) { ++of_.events; }
    ~fake_event() override { --of_.events; }
    fake_event(const fake_event&) = delete;
    fake_event& operator=(const fake_event&) = delete;
    void record(void* stream) override { in_ = of_.id_of_handle.at(stream); }
    void wait() override { of_.waited.insert(in_); }
    bool is_done() noexcept override { return of_.done.contains(in_); }
    void hold_back(void*) override {}

   private:
    fake_memory& of_;
    std::uint64_t in_ = 0;
  };
};

class stream_places_test : public ::testing::Test {
 protected:
  void use(void* handle) { places_.place_in(handle)->record(handle); }

  int handles_[2] = {};
  void *const first_ = &handles_[0], *const second_ = &handles_[1];
  fake_memory memory_;
  arrays::stream_places places_{memory_};
};

TEST_F(stream_places_test, one_place_of_each_stream_is_waited_for) {
  memory_.id_of_handle = {{first_, 1}, {second_, 2}};
  for (int i = 0; i < 3; ++i) {
    use(first_);
    use(second_);
  }
  places_.wait();
  EXPECT_EQ(memory_.waited, (std::multiset<std::uint64_t>{1, 2}));
}

TEST_F(stream_places_test, a_stream_that_was_destroyed_is_waited_for_if_another_has_its_handle) {
  memory_.id_of_handle = {{first_, 1}};
  use(first_);
  memory_.id_of_handle = {{first_, 2}};
  use(first_);
  places_.wait();
  EXPECT_EQ(memory_.waited, (std::multiset<std::uint64_t>{1, 2}));
}

TEST_F(stream_places_test, those_whose_work_has_ended_are_forgotten) {
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    memory_.id_of_handle = {{first_, id}};
    use(first_);
    memory_.done.insert(id);
  }
  EXPECT_EQ(memory_.events, 1u);
}

TEST_F(stream_places_test, one_that_a_call_is_about_to_record_stays) {
  memory_.id_of_handle = {{first_, 1}, {second_, 2}};
  memory_.done = {0};  // an event that was never recorded
  const auto place = places_.place_in(first_);
  use(second_);
  place->record(first_);
  places_.wait();
  EXPECT_EQ(memory_.waited, (std::multiset<std::uint64_t>{1, 2}));
}

}  // namespace
}  // namespace gpufs::testing
