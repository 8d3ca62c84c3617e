/* The loop of recorder.py, for a step of a hundred dispatches: called from Python one by one, its
 * three hundred calls take ten times as long as wgpu-native needs for them. */
#include <stddef.h>
#include <stdint.h>

typedef void (*set_pipeline)(void *encoder, void *pipeline);
typedef void (*set_bind_group)(void *encoder, uint32_t index, void *group, size_t count,
                               const uint32_t *offsets);
typedef void (*dispatch)(void *encoder, uint32_t x, uint32_t y, uint32_t z);

struct functions {
    void *set_pipeline, *set_bind_group, *dispatch;
};

/* x, y, z: where in ``sizes`` the numbers of workgroups are. */
struct command {
    void *pipeline, *group;
    uint32_t x, y, z;
};

void record_dispatches(const struct functions *functions, void *encoder, void *live,
                       uint32_t offset, const struct command *command, size_t count,
                       const uint32_t *sizes) {
    set_pipeline pipeline = (set_pipeline)functions->set_pipeline;
    set_bind_group group = (set_bind_group)functions->set_bind_group;
    dispatch run = (dispatch)functions->dispatch;
    const void *last_pipeline = NULL, *last_group = NULL;
    group(encoder, 0, live, 1, &offset);
    for (const struct command *end = command + count; command < end; command++) {
        uint32_t x = sizes[command->x], y = sizes[command->y], z = sizes[command->z];
        if (!x || !y || !z) continue;
        if (command->pipeline != last_pipeline) {
            last_pipeline = command->pipeline;
            pipeline(encoder, command->pipeline);
        }
        if (command->group != last_group) {
            last_group = command->group;
            group(encoder, 1, command->group, 0, NULL);
        }
        run(encoder, x, y, z);
    }
}
