/* A double of Metal's classes for GCC's Objective-C runtime, to test the macOS hooks on Linux.

   It copies from Metal: which class implements which message; that these classes are private and
   inherit from each other; that a `new...` method returns an owned object; that a buffer retains
   its heap; and that `release` ends in `dealloc`. It allocates nothing: heap offsets come from the
   caller or count up. DOUBLE_LOG gets one line per operation, in one order over all threads; tests
   compare traces with it. The log is written in the original methods, below every hook.

   This is a library: Python loads it with `ctypes`, object_storm.c links to it. */

#include <dlfcn.h>
#include <objc/objc.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/syscall.h>

typedef unsigned long Number;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *log_file;

static void write_down(const char *what, id object, Number a, Number b, Number c) {
    pthread_mutex_lock(&log_lock);
    if (!log_file) {
        const char *path = getenv("DOUBLE_LOG");
        log_file = fopen(path ? path : "/dev/null", "a");
    }
    fprintf(log_file, "%s object=%p tid=%ld a=%lu b=%lu c=%lu class=%s\n", what, (void *)object, syscall(SYS_gettid), a, b, c,
            object ? object_getClassName(object) : "-");
    fflush(log_file);
    pthread_mutex_unlock(&log_lock);
}

/* Limit for the sum of all heaps (DOUBLE_LIMIT); beyond it heap creation returns nil. */
static Number heaps_take;
static int there_is_room(Number more) {
    const char *limit = getenv("DOUBLE_LIMIT");
    Number taken = __atomic_add_fetch(&heaps_take, more, __ATOMIC_ACQ_REL);
    if (!limit || taken <= strtoul(limit, NULL, 10))
        return 1;
    __atomic_sub_fetch(&heaps_take, more, __ATOMIC_ACQ_REL);
    return 0;
}

/* The subset of NSObject that is needed. */
__attribute__((objc_root_class))
@interface Root {
    Class isa;
    int count;
}
+ (Class)class;
+ (id)make;
- (id)retain;
- (void)release;
- (void)dealloc;
@end

@implementation Root
+ (Class)class {
    return self;
}
+ (id)make {
    Root *made = class_createInstance(self, 0);
    made->count = 1;
    return made;
}
- (id)retain {
    __atomic_add_fetch(&count, 1, __ATOMIC_ACQ_REL);
    return self;
}
- (void)release {
    if (__atomic_sub_fetch(&count, 1, __ATOMIC_ACQ_REL) == 0)
        [self dealloc];
}
- (void)dealloc {
    object_dispose(self);
}
@end

@interface Descriptor : Root {
@public
    Number bytes;
}
@end
@implementation Descriptor
@end

/* Base of heaps, buffers and textures; private in Metal too. Buffers inherit its `dealloc`. */
@interface _MTLResource : Root {
@public
    Number bytes, allocated, offset, state;
    Root *heap, *device;
}
- (Number)setPurgeableState:(Number)next;
- (Number)allocatedSize;
- (Root *)device;
@end

@implementation _MTLResource
- (Number)setPurgeableState:(Number)next {
    Number before = state;
    if (next != 1) {
        write_down("purgeable", self, next, before, 0);
        state = next;
    }
    return before;
}
- (Number)allocatedSize {
    return allocated;
}
- (Root *)device {
    return device;
}
- (void)dealloc {
    write_down("end", self, 0, 0, 0);
    Root *keeps = heap;
    [super dealloc];
    [keeps release];
}
@end

@interface AGXBuffer : _MTLResource
- (Number)length;
- (Number)heapOffset;
@end
@implementation AGXBuffer
- (Number)length {
    return bytes;
}
- (Number)heapOffset {
    return offset;
}
@end

/* A GPU family's class, such as AGXG13's: it overrides inherited methods and calls super. */
@interface AGXG13Buffer : AGXBuffer
@end
@implementation AGXG13Buffer
- (Number)setPurgeableState:(Number)next {
    return [super setPurgeableState:next];
}
- (void)dealloc {
    [super dealloc];
}
@end

@interface AGXTexture : _MTLResource
- (Number)heapOffset;
@end
@implementation AGXTexture
- (Number)heapOffset {
    return offset;
}
@end

static Number rounded(Number bytes, Number to) {
    return (bytes + to - 1) / to * to;
}

static id make(Class class, Number bytes, Number to, Root *heap, Root *device, Number offset) {
    _MTLResource *made = [class make];
    made->bytes = bytes;
    made->allocated = rounded(bytes, to);
    made->offset = offset;
    made->heap = [heap retain];
    made->device = device;
    made->state = 2;
    return made;
}

@interface AGXHeap : _MTLResource {
@public
    Number next;
    Class buffers;
}
- (Number)size;
- (id)newBufferWithLength:(Number)length options:(Number)options;
- (id)newBufferWithLength:(Number)length options:(Number)options offset:(Number)at;
- (id)newTextureWithDescriptor:(Descriptor *)descriptor;
- (id)newTextureWithDescriptor:(Descriptor *)descriptor offset:(Number)at;
@end

@implementation AGXHeap
- (Number)size {
    return bytes;
}
- (void)dealloc {
    __atomic_sub_fetch(&heaps_take, bytes, __ATOMIC_ACQ_REL);
    [super dealloc];
}
- (Number)place:(Number)length {
    return __atomic_fetch_add(&next, rounded(length, 256), __ATOMIC_ACQ_REL);
}
- (id)newBufferWithLength:(Number)length options:(Number)options {
    Number at = [self place:length];
    if (at + rounded(length, 256) > bytes) {
        __atomic_sub_fetch(&next, rounded(length, 256), __ATOMIC_ACQ_REL);
        return nil;
    }
    return [self newBufferWithLength:length options:options offset:at];
}
- (id)newBufferWithLength:(Number)length options:(Number)options offset:(Number)at {
    id made = make(buffers, length, 256, self, device, at);
    write_down("block", made, length, rounded(length, 256), at);
    return made;
}
- (id)newTextureWithDescriptor:(Descriptor *)descriptor {
    return [self newTextureWithDescriptor:descriptor offset:[self place:descriptor->bytes]];
}
- (id)newTextureWithDescriptor:(Descriptor *)descriptor offset:(Number)at {
    id made = make([AGXTexture class], descriptor->bytes, 256, self, device, at);
    write_down("block", made, descriptor->bytes, rounded(descriptor->bytes, 256), at);
    return made;
}
@end

/* Minimal string object for `name`. */
@interface Name : Root
- (const char *)UTF8String;
@end
@implementation Name
- (const char *)UTF8String {
    return "Apple M0 Double";
}
@end

static Name *device_name;

@interface AGXDevice : Root {
@public
    Class buffers;
}
- (Number)recommendedMaxWorkingSetSize;
- (id)name;
- (id)newHeapWithDescriptor:(Descriptor *)descriptor;
- (id)newBufferWithLength:(Number)length options:(Number)options;
- (id)newBufferWithBytes:(const void *)from length:(Number)length options:(Number)options;
- (id)newBufferWithBytesNoCopy:(void *)from length:(Number)length options:(Number)options deallocator:(void *)block;
- (id)newTextureWithDescriptor:(Descriptor *)descriptor;
@end

@implementation AGXDevice
- (id)newHeapWithDescriptor:(Descriptor *)descriptor {
    if (!descriptor->bytes || !there_is_room(rounded(descriptor->bytes, 4096)))
        return nil;
    AGXHeap *made = make([AGXHeap class], rounded(descriptor->bytes, 4096), 4096, nil, self, 0);
    made->buffers = buffers;
    write_down("heap", made, made->bytes, made->allocated, 0);
    return made;
}
- (Number)recommendedMaxWorkingSetSize {
    return (Number)96 << 30;
}
- (id)name {
    return device_name;
}
- (id)newBufferWithLength:(Number)length options:(Number)options {
    id made = make(buffers, length, 4096, nil, self, 0);
    write_down("direct", made, length, rounded(length, 4096), 0);
    return made;
}
/* Calls another creating method, as Metal may. */
- (id)newBufferWithBytes:(const void *)from length:(Number)length options:(Number)options {
    return [self newBufferWithLength:length options:options];
}
- (id)newBufferWithBytesNoCopy:(void *)from length:(Number)length options:(Number)options deallocator:(void *)block {
    _MTLResource *made = make(buffers, length, 4096, nil, self, 0);
    made->allocated = 0;
    write_down("import", made, length, 0, 0);
    return made;
}
- (id)newTextureWithDescriptor:(Descriptor *)descriptor {
    id made = make([AGXTexture class], descriptor->bytes, 4096, nil, self, 0);
    write_down("direct", made, descriptor->bytes, rounded(descriptor->bytes, 4096), 0);
    return made;
}
@end

/* A device class with one method of its own, which calls super. */
@interface AGXG13Device : AGXDevice
@end
@implementation AGXG13Device
- (id)newBufferWithLength:(Number)length options:(Number)options {
    return [super newBufferWithLength:length options:options];
}
@end

@interface Array : Root {
@public
    id all[2];
}
- (Number)count;
- (id)objectAtIndex:(Number)at;
@end
@implementation Array
- (Number)count {
    return 2;
}
- (id)objectAtIndex:(Number)at {
    return all[at];
}
@end

static AGXDevice *devices[2];
static pthread_once_t devices_once = PTHREAD_ONCE_INIT;

static void make_devices(void) {
    device_name = [Name make];
    devices[0] = [AGXDevice make];
    devices[0]->buffers = [AGXBuffer class];
    devices[1] = [AGXG13Device make];
    devices[1]->buffers = [AGXG13Buffer class];
}

id MTLCreateSystemDefaultDevice(void) {
    pthread_once(&devices_once, make_devices);
    return [devices[0] retain];
}

id MTLCopyAllDevices(void) {
    pthread_once(&devices_once, make_devices);
    Array *made = [Array make];
    made->all[0] = devices[0];
    made->all[1] = devices[1];
    return made;
}

/* C functions for programs without Objective-C. */
id double_default_device(void) { return MTLCreateSystemDefaultDevice(); }
id double_device(Number at) {
    Array *all = MTLCopyAllDevices();
    id device = [all objectAtIndex:at];
    [all release];
    return device;
}
static Descriptor *of(Number bytes) {
    Descriptor *made = [Descriptor make];
    made->bytes = bytes;
    return made;
}
id double_heap(AGXDevice *device, Number bytes) {
    Descriptor *descriptor = of(bytes);
    id made = [device newHeapWithDescriptor:descriptor];
    [descriptor release];
    return made;
}
id double_texture(AGXDevice *device, Number bytes) {
    Descriptor *descriptor = of(bytes);
    id made = [device newTextureWithDescriptor:descriptor];
    [descriptor release];
    return made;
}
id double_heap_texture(AGXHeap *heap, Number bytes) {
    Descriptor *descriptor = of(bytes);
    id made = [heap newTextureWithDescriptor:descriptor];
    [descriptor release];
    return made;
}
id double_buffer(AGXDevice *device, Number bytes) { return [device newBufferWithLength:bytes options:0]; }
id double_bytes(AGXDevice *device, const void *from, Number bytes) { return [device newBufferWithBytes:from length:bytes options:0]; }
id double_no_copy(AGXDevice *device, void *from, Number bytes) {
    return [device newBufferWithBytesNoCopy:from length:bytes options:0 deallocator:0];
}
id double_heap_buffer(AGXHeap *heap, Number bytes) { return [heap newBufferWithLength:bytes options:0]; }
id double_heap_buffer_at(AGXHeap *heap, Number bytes, Number at) { return [heap newBufferWithLength:bytes options:0 offset:at]; }
Number double_purgeable(_MTLResource *resource, Number state) { return [resource setPurgeableState:state]; }
void double_release(Root *object) { [object release]; }
void double_retain(Root *object) { [object retain]; }

/* Another library that swizzles the same methods: it counts a call and forwards it. */
static Number foreign_calls[3];
static id (*foreign_buffer)(id, SEL, Number, Number);
static Number (*foreign_purgeable)(id, SEL, Number);
static void (*foreign_dealloc)(id, SEL);

static id foreign_new_buffer(id self, SEL selector, Number length, Number options) {
    __atomic_add_fetch(&foreign_calls[0], 1, __ATOMIC_RELAXED);
    return foreign_buffer(self, selector, length, options);
}
static Number foreign_set_purgeable(id self, SEL selector, Number state) {
    __atomic_add_fetch(&foreign_calls[1], 1, __ATOMIC_RELAXED);
    return foreign_purgeable(self, selector, state);
}
static void foreign_end(id self, SEL selector) {
    __atomic_add_fetch(&foreign_calls[2], 1, __ATOMIC_RELAXED);
    foreign_dealloc(self, selector);
}
static IMP swizzled(Class class, const char *name, IMP with) {
    /* GCC 12 builds a dispatch table at the first message, wrongly if a method changed before. */
    for (Class each = class; each; each = class_getSuperclass(each))
        class_getMethodImplementation(each, sel_registerName(name));
    Method method = class_getInstanceMethod(class, sel_registerName(name));
    return method_setImplementation(method, with);
}
void double_swizzle(void) {
    foreign_buffer = (void *)swizzled([AGXDevice class], "newBufferWithLength:options:", (IMP)(void *)foreign_new_buffer);
    foreign_purgeable = (void *)swizzled([_MTLResource class], "setPurgeableState:", (IMP)(void *)foreign_set_purgeable);
    foreign_dealloc = (void *)swizzled([_MTLResource class], "dealloc", (IMP)(void *)foreign_end);
}
Number double_foreign_calls(Number which) { return foreign_calls[which]; }

/* Makes a subclass at run time, as key-value observing does, and moves the object to it. */
static void observed_end(id self, SEL selector) {
    struct objc_super inherited = { self, class_getSuperclass(object_getClass(self)) };
    void (*of_superclass)(id, SEL) = (void *)objc_msg_lookup_super(&inherited, selector);
    of_superclass(self, selector);
}
void double_observe(id object) {
    static Class observing;
    if (!observing) {
        observing = objc_allocateClassPair(object_getClass(object), "Observing_AGXBuffer", 0);
        class_addMethod(observing, sel_registerName("dealloc"), (IMP)(void *)observed_end, "v16@0:8");
        objc_registerClassPair(observing);
    }
    object_setClass(object, observing);
}
