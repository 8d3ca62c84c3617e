{# The least and the largest of 0 and what a workgroup reads of COUNT elements: every workgroup
   takes as many, WG_X at a time. A second dispatch takes the extremes of these. #}
var<workgroup> lows: array<f32, {{ WG_X }}>;
var<workgroup> highs: array<f32, {{ WG_X }}>;
@compute @workgroup_size({{ WG_X }})
fn main(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    var low = 0.0;
    var high = 0.0;
    for (var k = workgroup.x * {{ WG_X }}u + lane; k < {{ COUNT }}; k += groups.x * {{ WG_X }}u) {
        let value = x[k];
        low = min(low, value);
        high = max(high, value);
    }
    lows[lane] = low;
    highs[lane] = high;
    workgroupBarrier();
    for (var left = {{ WG_X // 2 }}u; left > 0u; left /= 2u) {
        if (lane < left) {
            lows[lane] = min(lows[lane], lows[lane + left]);
            highs[lane] = max(highs[lane], highs[lane + left]);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        out[workgroup.x] = vec2<f32>(lows[0], highs[0]);
    }
}
