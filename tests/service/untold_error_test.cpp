// Errors of lost bytes that the backend tells to one call only: whichever call gets one, those that
// it concerns are told, and no thread waits for another one's call.
#include <errno.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/descriptor_table.hpp"
#include "gpufs/backend.hpp"
#include "service/file_table.hpp"
#include "support/eventually.hpp"
#include "support/fault_backend.hpp"
#include "support/hanging_server.hpp"
#include "support/service_rig.hpp"
#include "support/temporary.hpp"

namespace gpufs::testing {
namespace {

class untold_error : public hanging_server {
 protected:
  untold_error() {
    memory_->write("/a", "old");
    memory_->make_link("/alias", "/a");
  }
  std::shared_ptr<host_file> open(const std::string& path, std::uint64_t& handle,
                                  std::atomic<std::uint64_t>* joining = nullptr) {
    std::shared_ptr<host_file> file;
    EXPECT_EQ(table_.open_to_change(path, {}, handle, file, joining), 0);
    return file;
  }
  // A request of this kind, whose round is made at once.
  int ask(host_file& file, sync_rounds::kind what) {
    int told = 1;
    bool is_added = false;
    if (what == sync_rounds::kind::close) table_.note_close(file);
    (void)table_.ask(file.writing(), {what, [&](int status) { told = status; }, nullptr}, is_added);
    return told;
  }
  int sync(host_file& file) { return ask(file, sync_rounds::kind::sync); }
  int report(host_file& file) { return ask(file, sync_rounds::kind::close); }
  void refuse_one_close_of(const std::string& path, int error_number = EDQUOT) {
    io_->add({.on = operation::close, .path = path, .times_max = 1, .error_number = error_number});
  }
  std::size_t reports() const { return io_->calls(operation::close); }
  std::uint64_t logged() const {
    std::uint64_t count = 0;
    for (const file_error& e : table_.errors().list().errors) count += e.count;
    return count;
  }

  file_table table_{io_, 1024, 16};
  std::uint64_t handle_ = 0, alias_ = 0;
};

// As a FUSE server tells the next close of any descriptor, and so perhaps one that an open makes.
TEST_F(untold_error, that_an_open_took_is_told_to_the_others) {
  const auto file = open("/a", handle_), other = open("/alias", alias_);
  refuse_one_close_of("/alias");
  EXPECT_EQ(report(*file), -EDQUOT);
  EXPECT_EQ(logged(), 1u);
  EXPECT_EQ(sync(*other), -EDQUOT) << "from now on each call of the file";
}

// As that server tells the real close of a file that was asked before, or that is only read.
TEST_F(untold_error, that_a_close_took_is_told_to_the_others) {
  const auto file = open("/a", handle_);
  std::uint64_t reader = 0;
  std::shared_ptr<host_file> read;
  ASSERT_EQ(table_.open("/alias", false, reader, read), 0);
  read = nullptr;
  io_->add({.on = operation::real_close, .path = "/alias", .error_number = EDQUOT});
  EXPECT_EQ(table_.close(reader), 0);
  EXPECT_EQ(logged(), 1u);
  EXPECT_EQ(table_.errors().list().errors[0].path, "/alias");
  EXPECT_EQ(sync(*file), -EDQUOT);
}

TEST_F(untold_error, of_a_file_that_could_not_be_identified_is_no_other_files) {
  const auto file = open("/a", handle_);
  io_->add({.on = operation::identify, .path = "/other", .error_number = EIO});
  io_->add({.on = operation::real_close, .path = "/other", .error_number = EIO});
  memory_->write("/other", "content");
  std::shared_ptr<host_file> other;
  EXPECT_EQ(table_.open("/other", false, alias_, other), -EIO);
  EXPECT_EQ(sync(*file), 0);
  EXPECT_EQ(logged(), 0u);
}

TEST_F(untold_error, that_comes_after_the_table_is_nobodys) {
  auto table = std::make_unique<file_table>(io_, 1024, 16);
  std::shared_ptr<host_file> file;
  ASSERT_EQ(table->open_to_change("/a", {}, handle_, file), 0);
  io_->add({.on = operation::real_close, .path = "/a", .error_number = EIO});
  EXPECT_EQ(table->close(handle_, 0, file_table::closing::asks_nothing), 0);
  std::shared_ptr<host_file> read;
  ASSERT_EQ(table->open("/a", false, alias_, read), 0);
  table = nullptr;
  read = nullptr;
  EXPECT_EQ(io_->calls(operation::real_close), 2u);
}

TEST_F(untold_error, is_not_asked_for_when_the_mount_ends) {
  std::vector<std::uint64_t> handles(10);
  for (std::uint64_t& handle : handles) (void)open("/a", handle);
  io_->add({.on = operation::close, .nth = 3, .before = [&] { table_.end_rounds(); }});
  EXPECT_EQ(table_.close(handles[0]), -EIO);
  EXPECT_EQ(reports(), 3u);
  EXPECT_EQ(sync(*table_.find(handles[1])), -ECANCELED);
  EXPECT_EQ(io_->calls(operation::sync), 0u);
  EXPECT_EQ(table_.close(handles[2]), -EIO);
  EXPECT_EQ(table_.writers().size(), 9u) << "one was asked, and one waits for it";
  table_.close_all();
  EXPECT_EQ(memory_->open_now(), 0u);
}

TEST_F(untold_error, each_file_is_asked_once_and_again_after_a_write) {
  const auto file = open("/a", handle_), other = open("/alias", alias_);
  EXPECT_EQ(report(*file), 0);
  EXPECT_EQ(reports(), 2u) << "both";
  EXPECT_EQ(table_.close(alias_), 0);
  EXPECT_EQ(reports(), 2u) << "it has nothing to tell";
  EXPECT_EQ(sync(*file), 0);
  EXPECT_EQ(reports(), 2u);
  file->mark_untold();
  refuse_one_close_of("/a");
  EXPECT_EQ(table_.close(handle_), -EDQUOT);
  EXPECT_EQ(reports(), 3u);
  EXPECT_EQ(memory_->open_now(), 0u);
}

TEST_F(untold_error, closes_of_many_files_ask_each_about_twice) {
  constexpr std::size_t count = 200;
  std::vector<std::uint64_t> handles(count);
  for (std::uint64_t& handle : handles) (void)open("/a", handle);
  for (const std::uint64_t handle : handles) {
    EXPECT_EQ(report(*table_.find(handle)), 0);
    EXPECT_EQ(table_.close(handle), 0);
  }
  EXPECT_LT(reports(), 2 * count);
}

// A file whose first open joined writers in vain is opened again through the same descriptor, which
// may have errors of the bytes of those.
TEST_F(untold_error, of_an_earlier_version_does_not_come_along) {
  (void)open("/a", handle_);
  std::atomic<std::uint64_t> joining{0};
  auto file = open("/alias", alias_, &joining);
  EXPECT_EQ(table_.close(handle_), 0);
  EXPECT_FALSE(table_.confirm(alias_));
  refuse_one_close_of("/alias");
  EXPECT_EQ(table_.open_again(alias_, file, &joining), 0);
  EXPECT_EQ(logged(), 1u);
  EXPECT_EQ(report(*file), 0);
  EXPECT_EQ(sync(*file), 0);
}

TEST_F(untold_error, an_open_that_fails_keeps_none_for_itself) {
  const auto file = open("/a", handle_);
  io_->add({.on = operation::identify, .path = "/alias", .times_max = 1, .error_number = EIO});
  refuse_one_close_of("/alias");
  std::shared_ptr<host_file> other;
  EXPECT_EQ(table_.open_to_change("/alias", {}, alias_, other), -EIO);
  EXPECT_EQ(logged(), 1u);
  EXPECT_EQ(report(*file), -EDQUOT);
}

// That says nothing about the bytes, so it concerns no later call. The next one asks again.
TEST_F(untold_error, not_to_be_able_to_ask_is_no_loss) {
  const auto file = open("/a", handle_), other = open("/alias", alias_);
  for (const int error_number : {EAGAIN, EMFILE}) {
    io_->add({.on = operation::close, .path = "/alias", .error_number = error_number});
    EXPECT_EQ(report(*other), -error_number);
    EXPECT_EQ(sync(*other), 0);
    io_->clear();
    const std::size_t before = reports();
    EXPECT_EQ(report(*file), 0);
    EXPECT_EQ(reports(), before + 2);
  }
  EXPECT_EQ(logged(), 2u) << "but the host is told";
}

// A close never waits for a round that hangs. Who makes that one asks the closed file, too.
TEST_F(untold_error, of_a_file_that_is_closed_beside_a_round_is_asked_for_afterwards) {
  const auto file = open("/a", handle_);
  (void)open("/alias", alias_);
  hang(operation::sync, "/a");
  int first = 1;
  std::thread slow([&] { first = sync(*file); });
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  EXPECT_EQ(table_.close(alias_), 0);
  EXPECT_EQ(table_.writers().size(), 2u) << "the unmount finds it";
  EXPECT_EQ(memory_->open_now(), 2u);
  refuse_one_close_of("/alias");
  server_answers_ = true;
  slow.join();
  EXPECT_EQ(first, 0);
  EXPECT_EQ(memory_->open_now(), 1u);
  EXPECT_EQ(report(*file), -EDQUOT);
  EXPECT_EQ(logged(), 1u);
}

// The file is closed, and another program or group opens it, while a call of the old one hangs: it
// may take an error of the new one's bytes.
TEST_F(untold_error, that_a_late_call_takes_from_the_next_version_is_told_there) {
  const auto file = open("/a", handle_);
  hang(operation::sync, "/a", EDQUOT);
  std::thread slow([&] { EXPECT_EQ(sync(*file), -EDQUOT); });
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  EXPECT_EQ(table_.close(handle_), 0);
  std::shared_ptr<host_file> reader;
  std::uint64_t read = 0;
  ASSERT_EQ(table_.open("/a", false, read, reader), 0);  // a version between them
  const auto next = open("/a", handle_);
  EXPECT_NE(&next->version(), &file->version());
  server_answers_ = true;
  slow.join();
  EXPECT_EQ(report(*next), -EDQUOT);
  EXPECT_EQ(table_.close(handle_), 0);
  const auto last = open("/a", handle_);
  EXPECT_EQ(report(*last), 0) << "opened when all was told";
}

// One that hangs must not keep other threads from the other files.
TEST_F(untold_error, of_files_that_are_left_to_others_is_asked_for_one_by_one) {
  memory_->write("/b", "other");
  std::uint64_t other = 0;
  (void)open("/a", handle_), (void)open("/b", other);
  for (const std::uint64_t handle : {handle_, other})
    EXPECT_EQ(table_.close(handle, 0, file_table::closing::leaves_asking), 0);
  EXPECT_EQ(reports(), 0u);
  hang(operation::close, "/a");
  std::thread slow([&] { table_.ask_closed(); });
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  EXPECT_TRUE(table_.awaits_asking());
  table_.ask_closed();
  EXPECT_FALSE(table_.awaits_asking());
  EXPECT_EQ(memory_->open_now(), 1u);
  server_answers_ = true;
  slow.join();
  EXPECT_EQ(memory_->open_now(), 0u);
}

// Its group has given up, and nobody else is told.
TEST_F(untold_error, of_a_sync_that_ends_after_its_file_was_closed_is_in_the_log) {
  service_rig rig(io_);
  const rig_reply file = rig.open_to_write("/a");
  hang(operation::sync, "/a", ENOSPC);
  std::thread slow(
      [&] { EXPECT_EQ(rig.call({request_code::sync, file.handle, 0, 0}).result, -ENOSPC); });
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  EXPECT_EQ(rig.call({request_code::close_written, file.handle, 0, 0}).result, 0);
  server_answers_ = true;
  slow.join();
  const file_error_list list = rig.files().errors().list();
  ASSERT_EQ(list.errors.size(), 1u);
  EXPECT_EQ(list.errors[0].error_number, ENOSPC);
  EXPECT_EQ(list.errors[0].what, file_operation::sync);
}

// A kernel may ring one slot again and again.
TEST_F(untold_error, one_request_of_a_slot_waits_for_a_round) {
  service_rig rig(io_);
  const rig_reply file = rig.open_to_write("/a");
  hang(operation::sync, "/a");
  std::thread slow([&] { (void)rig.call({request_code::sync, file.handle, 0, 0}); });
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  const channel_view channel = rig.memory().view();
  std::uint32_t slot = 0;
  const auto answered = [&](std::uint32_t s) {
    return reply_sequence(channel.reply(s).word.load_relaxed());
  };
  while (channel.bell(slot).load_acquire() == answered(slot)) ++slot;
  const std::uint32_t sequence = channel.bell(slot).load_acquire() + 1;
  channel.request(slot).store({request_code::report_close, file.handle, 0, 0}, sequence);
  channel.bell(slot).store_release(sequence);
  EXPECT_TRUE(eventually([&] { return answered(slot) == sequence; }));
  EXPECT_EQ(reply_result(channel.reply(slot).word.load_relaxed()), -EBUSY);
  server_answers_ = true;
  slow.join();
}

// A sync that hangs takes one thread, however many requests of the file wait for it.
TEST_F(untold_error, threads_do_not_wait_for_a_sync_that_hangs) {
  service_rig_options options;
  options.workers = 2;
  options.slots = 16;
  service_rig rig(io_, options);
  memory_->write("/b", "other");
  const rig_reply file = rig.open_to_write("/a"), other = rig.open_to_write("/alias");
  hang(operation::sync, "/a");
  std::vector<std::thread> callers;
  std::atomic<int> answered{0};
  const auto call = [&](request_code code, std::uint64_t handle) {
    callers.emplace_back([&, code, handle] {
      EXPECT_EQ(rig.call({code, handle, 0, 0}).result, 0);
      ++answered;
    });
  };
  call(request_code::sync, file.handle);
  EXPECT_TRUE(eventually([&] { return hanging_ != 0; }));
  for (int i = 0; i < 6; ++i) call(request_code::report_close, i % 2 ? file.handle : other.handle);
  // Also one that was not asked yet.
  EXPECT_EQ(rig.close(rig.open_to_write("/alias").handle).result, 0);
  const rig_reply third = rig.open_to_write("/b");
  EXPECT_EQ(rig.write(third.node, 0, "bytes").result, 5);
  EXPECT_EQ(rig.call({request_code::report_close, third.handle, 0, 0}).result, 0);
  EXPECT_EQ(rig.close(third.handle).result, 0);
  EXPECT_EQ(answered, 0);
  server_answers_ = true;
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(rig.close(file.handle).result, 0);
  EXPECT_EQ(rig.close(other.handle).result, 0);
  EXPECT_TRUE(eventually([&] { return memory_->open_now() == 0; }));
}

// An opener may have a descriptor table of its own. So it makes the closes that its open waits for,
// and leaves it to workers to ask whether bytes are lost.
TEST_F(untold_error, workers_ask_the_files_that_openers_have_closed) {
  std::atomic<std::thread::id> worker;
  const auto io = std::make_shared<fault_backend>(make_posix_backend({}));
  if (!descriptor_table::can_be_own("/proc"))
    GTEST_SKIP() << "this system has no tables for single threads";
  const temporary_folder folder;
  const std::string path = folder.write("a", "old"), other = folder.write("b", "other");
  service_rig_options options;
  options.workers = 1;
  service_rig rig(io, options);
  const rig_reply file = rig.open_to_write(path), busy = rig.open_to_write(other);
  std::atomic<bool> hangs{false}, goes_on{false};
  io->add({.on = operation::write, .path = other, .times_max = 1, .before = [&] {
             worker = std::this_thread::get_id();
             hangs = true;
             while (!goes_on) std::this_thread::yield();
           }});
  std::thread writer([&] { EXPECT_EQ(rig.write(busy.node, 0, "x").result, 1); });
  EXPECT_TRUE(eventually([&] { return hangs.load(); }));
  std::thread closer([&] { EXPECT_EQ(rig.close(file.handle).result, 0); });
  EXPECT_TRUE(eventually([&] { return rig.files().find(file.handle) == nullptr; })) << "no worker";
  EXPECT_NE(rig.open(path).version, file.version);
  EXPECT_EQ(io->calls(operation::close), 0u);
  std::atomic<std::thread::id> asker;
  io->add({.on = operation::close,
           .path = path,
           .before = [&] { asker = std::this_thread::get_id(); },
           .error_number = EDQUOT});
  goes_on = true;
  EXPECT_TRUE(eventually([&] { return io->calls(operation::close) == 1; }));
  // The call is counted before it stores its thread.
  EXPECT_TRUE(eventually([&] { return rig.files().errors().list().errors.size() == 1; }));
  EXPECT_EQ(asker.load(), worker.load());
  for (std::thread* t : {&writer, &closer}) t->join();
}

}  // namespace
}  // namespace gpufs::testing
